// A payload or result as tree, text and hex. Only what is looked at is rendered.
import { bytes } from "../lib/format.js";
import { html, useMemo, useState } from "../lib/html.js";
import { ExactNumber, stringifyJson } from "../lib/json.js";
import { CopyButton } from "./copy.js";
import { Icon } from "./icon.js";
import { Choices } from "./tabs.js";
import { Text } from "./text.js";

const CHILDREN = 100;
const OPEN_MAX = 12;
const TEXT_MAX = 100_000;
const HEX_ROWS = 64;
const ROW = 16;

function bytesOf(base64) {
  const text = atob(base64);
  return Uint8Array.from(text, (char) => char.charCodeAt(0));
}

// `value` is any JSON value; `base64` instead of it is a payload that is not text. `bytes` is its
// size as it is stored, which differs from that of the shown text.
export function Value({ value, base64, label = "Value", bytes: stored }) {
  const isBinary = base64 !== undefined && base64 !== null;
  const isTree = !isBinary && value !== null && typeof value === "object";
  const [view, setView] = useState(isBinary ? "hex" : isTree ? "tree" : "text");
  const text = useMemo(
    () => (isBinary ? "" : typeof value === "string" ? value : stringifyJson(value, 2) ?? ""),
    [value, isBinary],
  );
  const raw = useMemo(
    () => (isBinary ? bytesOf(base64) : view === "hex" ? new TextEncoder().encode(text) : null),
    [base64, text, view],
  );
  const choices = [["tree", "Tree"], ["text", "Text"], ["hex", "Hex"]];
  const shown = choices.filter(([key]) => key === "hex" || (key === "text" ? !isBinary : isTree));
  const size = useMemo(() => (isBinary ? raw.length : new Blob([text]).size), [base64, text]);
  return html`<div class="value">
    <div class="toolbar">
      <${Choices} label=${`${label} as`} choices=${shown} chosen=${view} onChoose=${setView} />
      <span class="hint">${bytes(stored ?? size)}</span>
      <${CopyButton} text=${isBinary ? base64 : text} label=${isBinary ? "Copy base64" : "Copy"} />
    </div>
    <div class="value-body" tabindex="0" role="region" aria-label=${label}>
      ${view === "tree" && html`<ul class="tree"><${Node} value=${value} open /></ul>`}
      ${view === "text" && html`<pre><${Text} value=${text} max=${TEXT_MAX} /></pre>`}
      ${view === "hex" && raw && html`<${Hex} data=${raw} />`}
    </div>
  </div>`;
}

// Small branches below an open one are open at first.
const isSmall = (value) => value !== null && typeof value === "object" && Object.keys(value).length <= OPEN_MAX;

function Node({ name, value, open: first = false }) {
  const [open, setOpen] = useState(first);
  const [limit, setLimit] = useState(CHILDREN);
  const key = name !== undefined && html`<span class="tree-key"><${Text} value=${name} max=${200} /></span>`;
  const isBranch = value !== null && typeof value === "object" && !(value instanceof ExactNumber);
  if (!isBranch) return html`<li>${key}<${Leaf} value=${value} /></li>`;
  const children = Object.keys(value);
  const [from, till] = Array.isArray(value) ? "[]" : "{}";
  return html`<li>
    <button type="button" class="tree-toggle" aria-expanded=${open ? "true" : "false"} onClick=${() => setOpen(!open)}>
      <${Icon} name=${open ? "down" : "right"} />${key}<span class="hint">${from}${children.length.toLocaleString("en")}${till}</span>
    </button>
    ${open &&
    html`<ul>
      ${children.slice(0, limit).map((each) => html`<${Node} key=${each} name=${each} value=${value[each]} open=${first && isSmall(value[each])} />`)}
      ${children.length > limit &&
      html`<li><button class="link" onClick=${() => setLimit(limit + CHILDREN)}>
        Show ${CHILDREN} more of ${(children.length - limit).toLocaleString("en")}
      </button></li>`}
    </ul>`}
  </li>`;
}

function Leaf({ value }) {
  if (typeof value === "string") {
    return html`<span class="tree-text">"<${Text} value=${value} max=${500} />"</span>`;
  }
  return html`<span class="tree-atom">${String(value)}</span>`;
}

const hex = (number, digits) => number.toString(16).padStart(digits, "0");

function hexRow(data, at) {
  const part = [...data.slice(at, at + ROW)];
  const codes = part.map((byte) => hex(byte, 2)).join(" ").padEnd(ROW * 3 - 1);
  const text = part.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
  return `${hex(at, 8)}  ${codes}  ${text}`;
}

function Hex({ data }) {
  const [rows, setRows] = useState(HEX_ROWS);
  const total = Math.ceil(data.length / ROW);
  const lines = [];
  for (let row = 0; row < Math.min(rows, total); row += 1) lines.push(hexRow(data, row * ROW));
  return html`<pre>${lines.join("\n")}</pre>
    ${total > rows &&
    html`<button class="link" onClick=${() => setRows(rows * 4)}>
      Show more of ${bytes(data.length - rows * ROW)}
    </button>`}`;
}
