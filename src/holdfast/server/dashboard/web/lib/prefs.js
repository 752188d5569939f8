// Choices of this browser: theme, times, columns, saved filters. Unreadable ones are ignored.
import { createStore, useStore } from "./store.js";

const KEY = "holdfast";
const DEFAULTS = { theme: "auto", time: "relative", namespace: "", range: "1h", grouped: true };

function read() {
  try {
    const found = JSON.parse(localStorage.getItem(KEY));
    return found !== null && typeof found === "object" ? { ...DEFAULTS, ...found } : DEFAULTS;
  } catch {
    return DEFAULTS;
  }
}

export const prefs = createStore(read());

prefs.watch((value) => {
  try {
    localStorage.setItem(KEY, JSON.stringify(value));
  } catch {
    // Storage is full or forbidden: the choice lasts as long as the page.
  }
});

// One choice, as [value, set]. A page may keep its own under any name.
export function usePref(name, otherwise) {
  const value = useStore(prefs)[name] ?? otherwise;
  return [value, (next) => prefs.update({ [name]: next })];
}

function applyTheme({ theme }) {
  const known = theme === "light" || theme === "dark";
  if (known) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

applyTheme(prefs.get());
prefs.watch(applyTheme);
