// Keys of the page: "/", "?", "j", and sequences such as "g o". Typing in a field is left alone.
import { useLayoutEffect, useRef } from "./html.js";
import { createStore } from "./store.js";

const SEQUENCE_MS = 1_500;
const FIELDS = "input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable]";

// The keys that work now, as [{keys, text, act}]: the help shows them.
export const shortcuts = createStore([]);

// Calls `act` when the keys are pressed. `text` says in the help what happens.
export function useKey(keys, text, act, { enabled = true } = {}) {
  const latest = useRef(act);
  latest.current = act;
  // What is shown can be pressed: the keys work before the page is painted.
  useLayoutEffect(() => {
    if (!enabled) return undefined;
    const mine = { keys, text, act: (event) => latest.current(event) };
    shortcuts.set([...shortcuts.get(), mine]);
    return () => shortcuts.set(shortcuts.get().filter((each) => each !== mine));
  }, [keys, text, enabled]);
}

let first = null;
let firstAt = 0;

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (event.target.closest?.(FIELDS) || document.querySelector("dialog[open]")) return;
  const pair = first !== null && event.timeStamp - firstAt < SEQUENCE_MS;
  const pressed = pair ? `${first} ${event.key}` : event.key;
  first = null;
  const known = shortcuts.get();
  // The latest wins: a part of the page before the page's frame.
  const found = known.findLast((each) => each.keys === pressed);
  if (found) {
    event.preventDefault();
    found.act(event);
  } else if (!pair && known.some((each) => each.keys.startsWith(`${event.key} `))) {
    [first, firstAt] = [event.key, event.timeStamp];
  }
});
