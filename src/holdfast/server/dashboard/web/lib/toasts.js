// Short messages about what was done or what failed. parts/toast.js shows them.
import { createStore } from "./store.js";

const SHOWN_MS = 6_000;
const SHOWN_MAX = 4;

export const toasts = createStore([]);
let last = 0;

export function showToast(text, { tone = "done", remedy = "" } = {}) {
  const id = ++last;
  toasts.set([...toasts.get().slice(1 - SHOWN_MAX), { id, text, tone, remedy }]);
  // An error stays until it is closed.
  if (tone !== "error") setTimeout(() => closeToast(id), SHOWN_MS);
}

export const showError = (error) =>
  showToast(error.message, { tone: "error", remedy: error.remedy ?? "" });

export const closeToast = (id) => toasts.set(toasts.get().filter((each) => each.id !== id));
