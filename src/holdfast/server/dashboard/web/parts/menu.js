// A button that opens a small panel below it. Escape, and a press outside, close it.
import { html, names, useEffect, useId, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { Icon } from "./icon.js";

const MARGIN = 8;

// `children` is a function that gets `close`. With `end` the panel ends where the button ends.
export function Menu({ label, icon, end = false, primary = false, children }) {
  const [open, setOpen] = useState(false);
  const place = useRef(null);
  const panel = useRef(null);
  const id = useId();
  const close = ({ refocus = true } = {}) => {
    setOpen(false);
    if (refocus) place.current?.querySelector("button").focus();
  };
  // On a narrow screen the panel is moved into view.
  useLayoutEffect(() => {
    if (!open) return;
    panel.current.style.translate = "";
    const { left, right } = panel.current.getBoundingClientRect();
    const over = Math.max(0, right + MARGIN - document.documentElement.clientWidth);
    const shift = left < MARGIN ? MARGIN - left : -over;
    if (shift) panel.current.style.translate = `${shift}px`;
  }, [open]);
  useEffect(() => {
    if (!open) return undefined;
    const outside = (event) => place.current?.contains(event.target) || setOpen(false);
    const pressed = (event) => event.key === "Escape" && close();
    addEventListener("pointerdown", outside);
    addEventListener("focusin", outside);
    addEventListener("keydown", pressed);
    return () => {
      removeEventListener("pointerdown", outside);
      removeEventListener("focusin", outside);
      removeEventListener("keydown", pressed);
    };
  }, [open]);
  return html`<div class="menu-place" ref=${place}>
    <button
      type="button"
      class=${names("button", primary && "button-primary")}
      aria-expanded=${open ? "true" : "false"}
      aria-controls=${id}
      onClick=${() => setOpen(!open)}
    >${icon && html`<${Icon} name=${icon} />`}${label}<${Icon} name="down" /></button>
    <div id=${id} ref=${panel} class=${names("menu-panel", end && "menu-end")} hidden=${!open}>${open && children(close)}</div>
  </div>`;
}

// One entry of a menu.
export const MenuItem = ({ onClick, danger, children }) => html`<button
  type="button"
  class=${names("menu-item", danger && "menu-danger")}
  onClick=${onClick}
>${children}</button>`;
