// A stack trace, folded to the frames of the user's own code.
import { html, useMemo, useState } from "../../lib/html.js";
import { plural } from "../../lib/format.js";
import { Text } from "../../parts/text.js";

const FRAME = /^\s*File "(.*)", line (\d+)(?:, in (.*))?$/;
const LIBRARY = /\/(site|dist)-packages\/|\/lib\/python[\d.]+\/|[\\/]Lib[\\/]|^<frozen |\/holdfast\/(worker|app|core|engines)\//;
const TEXT_MAX = 20_000;
const FRAMES_MAX = 200;

// A Python trace as [{own, path, line, name, source}] and texts; null if it is not one.
export function framesOf(trace) {
  const found = [];
  let frame = null;
  for (const line of trace.slice(0, TEXT_MAX * 5).split("\n")) {
    const [, path, at, name] = FRAME.exec(line) ?? [];
    if (path !== undefined) {
      frame = { own: !LIBRARY.test(path), path, line: at, name: name ?? "", source: [] };
      found.push(frame);
    } else if (frame && /^\s{4}/.test(line)) {
      if (!/^[\s^~]*$/.test(line)) frame.source.push(line.trim());
    } else if (line.trim()) {
      frame = null;
      found.push({ text: line });
    }
    if (found.length > FRAMES_MAX) return null;
  }
  return found.some(({ path }) => path !== undefined) ? found : null;
}

// Neighbouring frames of libraries become one entry: {folded: [frames]}
function folded(entries) {
  const found = [];
  for (const entry of entries) {
    const isLibrary = entry.own === false;
    if (isLibrary && found.at(-1)?.folded) found.at(-1).folded.push(entry);
    else found.push(isLibrary ? { folded: [entry] } : entry);
  }
  return found;
}

export function Stack({ trace }) {
  const entries = useMemo(() => framesOf(trace), [trace]);
  const [raw, setRaw] = useState(entries === null);
  return html`<div class="stack">
    ${raw || entries === null
      ? html`<pre
        tabindex="0"
        role="region"
        aria-label="Stack trace"
      ><${Text} value=${trace} max=${TEXT_MAX} /></pre>`
      : html`<ol>${folded(entries).map((entry, i) => html`<${Entry} key=${i} entry=${entry} />`)}</ol>`}
    ${entries !== null &&
    html`<button class="link" onClick=${() => setRaw(!raw)}>${raw ? "Only own frames" : "Show it as it is"}</button>`}
  </div>`;
}

function Entry({ entry }) {
  const [open, setOpen] = useState(false);
  if (entry.text !== undefined) return html`<li class="stack-text"><${Text} value=${entry.text} max=${500} /></li>`;
  if (!entry.folded) return html`<li><${Frame} frame=${entry} /></li>`;
  return html`<li class="stack-folded">
    <button class="link" aria-expanded=${open ? "true" : "false"} onClick=${() => setOpen(!open)}>
      ${open ? "Hide" : "…"} ${plural(entry.folded.length, "frame")} of libraries
    </button>
    ${open && entry.folded.map((frame, i) => html`<${Frame} key=${i} frame=${frame} />`)}
  </li>`;
}

// The end of a path is what people look for.
const shortPath = (path) => path.split(/[\\/]/).slice(-2).join("/");

const Frame = ({ frame: { path, line, name, source } }) => html`<div class="frame">
  <span title=${path}><bdi>${shortPath(path)}:${line}</bdi>${name && html` in <${Text} value=${name} max=${100} />`}</span>
  ${source.length > 0 && html`<code><${Text} value=${source.join("\n")} max=${500} /></code>`}
</div>`;
