// A button that acts at once, or after a question.
import { html } from "../lib/html.js";
import { useAction } from "../lib/resource.js";
import { confirm } from "./dialog.js";
import { useReload } from "./listing.js";

// `act` does it; `ask` is the question of `confirm`, if there is one; `done` the toast afterwards.
// The list around the button is read again, then `after` gets the answer. `name` tells apart
// buttons with the same label to screen readers.
export function ActButton({ label, name, act, ask, done, after, style = "button-quiet", disabled = false }) {
  const reload = useReload();
  const acting = useAction(act, { done });
  const press = async () => {
    if (ask && !(await confirm({ label, ...ask }))) return;
    const answer = await acting.run();
    if (answer === undefined) return;
    await reload(); // so that `after` leads to a list without what was removed
    after?.(answer);
  };
  return html`<button
    class=${`button ${style}`}
    disabled=${disabled || acting.busy}
    onClick=${press}
    aria-label=${name ? `${label} ${name}` : undefined}
  >${label}</button>`;
}
