// The weights of tenants as rows of a name and a number.
import { html, useId } from "../../lib/html.js";
import { Icon } from "../../parts/icon.js";
import { Text } from "../../parts/text.js";

// `rows` is [[tenant, weight]], both texts.
export function Weights({ label, hint, error, rows, onInput }) {
  const id = useId();
  const change = (at, place, value) =>
    onInput(rows.map((row, i) => (i === at ? row.with(place, value) : row)));
  return html`<fieldset class="field weights" aria-describedby=${`${id}-hint`}>
    <legend>${label}</legend>
    ${rows.map(
      ([tenant, weight], at) => html`<div class="weights-row">
        <input
          aria-label=${`Tenant ${at + 1}`}
          value=${tenant}
          placeholder="tenant"
          autocomplete="off"
          onInput=${(event) => change(at, 0, event.target.value)}
        />
        <input
          aria-label=${`Weight of tenant ${at + 1}`}
          value=${weight}
          inputmode="numeric"
          placeholder="1"
          autocomplete="off"
          onInput=${(event) => change(at, 1, event.target.value)}
        />
        <button
          type="button"
          class="button button-quiet"
          aria-label=${`Remove tenant ${at + 1}`}
          onClick=${() => onInput(rows.toSpliced(at, 1))}
        ><${Icon} name="close" /></button>
      </div>`,
    )}
    <div><button type="button" class="button" onClick=${() => onInput([...rows, ["", "1"]])}>Add a tenant</button></div>
    <p class="hint" id=${`${id}-hint`}>${hint}</p>
    ${error && html`<p class="field-error"><${Text} value=${error} max=${300} /></p>`}
  </fieldset>`;
}
