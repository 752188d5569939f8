// Filters as chips: "state dead ×", and a field with completion that adds one.
import { html, useId, useState } from "../lib/html.js";
import { Icon } from "./icon.js";
import { Text } from "./text.js";

export const Chip = ({ name, value, onRemove }) => html`<span class="chip">
  <span class="chip-name">${name}</span><${Text} value=${value} max=${40} />
  ${onRemove &&
  html`<button type="button" aria-label=${`Remove the filter ${name} ${value}`} onClick=${onRemove}>
    <${Icon} name="close" />
  </button>`}
</span>`;

// `filters` is [[name, value]]. `suggest(text)` returns texts such as "state:dead" for what was
// typed so far; `onAdd` gets the entered text.
export function Chips({ label, filters, onRemove, onAdd, suggest, placeholder, inputRef }) {
  const id = useId();
  const [text, setText] = useState("");
  const submit = (event) => {
    event.preventDefault();
    if (text.trim() && onAdd(text.trim()) !== false) setText("");
  };
  const typed = (event) => {
    const { value } = event.target;
    // A browser reports a chosen suggestion as a replacement, not as typing.
    const isChosen = event.inputType === "insertReplacementText" || !event.inputType;
    if (isChosen && suggest(text).includes(value) && onAdd(value) !== false) setText("");
    else setText(value);
  };
  return html`<form class="chips" role="search" aria-label=${label} onSubmit=${submit}>
    <${Icon} name="search" />
    ${filters.map(
      ([name, value]) => html`<${Chip}
        key=${`${name}:${value}`}
        name=${name}
        value=${value}
        onRemove=${() => onRemove(name, value)}
      />`,
    )}
    <input
      ref=${inputRef}
      aria-label=${label}
      list=${id}
      value=${text}
      placeholder=${placeholder}
      autocomplete="off"
      spellcheck=${false}
      onInput=${typed}
    />
    <datalist id=${id}>${suggest(text).map((each) => html`<option value=${each} />`)}</datalist>
  </form>`;
}
