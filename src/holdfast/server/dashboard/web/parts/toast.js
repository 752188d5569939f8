// The toasts in the corner, announced to screen readers.
import { sentence } from "../lib/format.js";
import { html } from "../lib/html.js";
import { useStore } from "../lib/store.js";
import { closeToast, toasts } from "../lib/toasts.js";
import { Icon } from "./icon.js";
import { Text } from "./text.js";

export function Toasts() {
  const shown = useStore(toasts);
  return html`<div class="toasts" role="status" aria-live="polite">
    ${shown.map(
      ({ id, text, tone, remedy }) => html`<div key=${id} class=${`toast toast-${tone}`}>
        <${Icon} name=${tone === "error" ? "critical" : "check"} />
        <div class="notice-text"><${Text} value=${sentence(text)} max=${400} />${remedy && html`<p>${remedy}</p>`}</div>
        <button class="button button-quiet" aria-label="Close" onClick=${() => closeToast(id)}>
          <${Icon} name="close" />
        </button>
      </div>`,
    )}
  </div>`;
}
