// Tabs of a page, and a row of choices of which one is on.
import { html, useId, useRef } from "../lib/html.js";

// `tabs` is [[key, title]]; the content of the chosen one is the child.
export function Tabs({ label, tabs, chosen, onChoose, children }) {
  const id = useId();
  const list = useRef(null);
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = tabs.findIndex(([key]) => key === chosen);
    const next = (at + step + tabs.length) % tabs.length;
    onChoose(tabs[next][0]);
    list.current.children[next].focus();
  };
  return html`<div class="tabs" role="tablist" aria-label=${label} ref=${list} onKeyDown=${move}>
      ${tabs.map(
        ([key, title]) => html`<button
          key=${key}
          type="button"
          role="tab"
          id=${`${id}-${key}`}
          aria-selected=${key === chosen ? "true" : "false"}
          aria-controls=${`${id}-panel`}
          tabindex=${key === chosen ? 0 : -1}
          onClick=${() => onChoose(key)}
        >${title}</button>`,
      )}
    </div>
    <div role="tabpanel" id=${`${id}-panel`} aria-labelledby=${`${id}-${chosen}`}>${children}</div>`;
}

// `choices` is [[key, title]].
export const Choices = ({ label, choices, chosen, onChoose }) => html`<div
  class="choices"
  role="group"
  aria-label=${label}
>
  ${choices.map(
    ([key, title]) => html`<button
      key=${key}
      type="button"
      aria-pressed=${key === chosen ? "true" : "false"}
      onClick=${() => onChoose(key)}
    >${title}</button>`,
  )}
</div>`;
