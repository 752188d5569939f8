// Dialogs: the native element keeps the focus inside, and gives it back at the end.
import { html, useId, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { count as countText } from "../lib/format.js";
import { createStore, useStore } from "../lib/store.js";
import { Field } from "./form.js";

const TYPED_ABOVE = 1_000;

// A dialog that is open while it is rendered. Escape and the backdrop close it.
export function Dialog({ title, onClose, children, footer, wide = false }) {
  const element = useRef(null);
  const id = useId();
  // As soon as it is gone the opener has the focus: a key that is pressed at once must not lose it.
  useLayoutEffect(() => {
    const dialog = element.current;
    dialog.showModal();
    return () => dialog.close();
  }, []);
  const pressed = (event) => event.target === element.current && onClose();
  return html`<dialog
    ref=${element}
    class=${wide ? "dialog dialog-wide" : "dialog"}
    aria-labelledby=${id}
    onCancel=${(event) => {
      event.preventDefault();
      onClose();
    }}
    onPointerDown=${pressed}
  >
    <h2 id=${id}>${title}</h2>
    <div class="dialog-body">${children}</div>
    <div class="dialog-footer">${footer ?? html`<button class="button" onClick=${onClose}>Close</button>`}</div>
  </dialog>`;
}

const question = createStore(null);

// Asks before an act: resolves to true or false. The label names the act ("Cancel 12 jobs"). Above
// 1,000 things the count must be typed.
export function confirm({ title, text, label, count = 0, danger = false }) {
  return new Promise((resolve) => {
    question.set({ title, text, label, count, danger, resolve });
  });
}

// Shows the questions of `confirm`; the frame of the page contains it once.
export function ConfirmHost() {
  const asked = useStore(question);
  return asked && html`<${Confirm} key=${asked.title} ...${asked} />`;
}

function Confirm({ title, text, label, count, danger, resolve }) {
  const [typed, setTyped] = useState("");
  const mustType = count > TYPED_ABOVE;
  const allowed = !mustType || typed.replace(/[\s,.]/g, "") === String(count);
  const answer = (value) => {
    question.set(null);
    resolve(value);
  };
  const footer = html`<button class="button" onClick=${() => answer(false)}>Keep as is</button>
    <button
      class=${`button ${danger ? "button-danger" : "button-primary"}`}
      disabled=${!allowed}
      onClick=${() => answer(true)}
    >${label}</button>`;
  return html`<${Dialog} title=${title} onClose=${() => answer(false)} footer=${footer}>
    ${text && html`<p>${text}</p>`}
    ${mustType &&
    html`<${Field}
      label=${`Type ${countText(count)} to confirm`}
      value=${typed}
      onInput=${setTyped}
      autocomplete="off"
    />`}
  </${Dialog}>`;
}
