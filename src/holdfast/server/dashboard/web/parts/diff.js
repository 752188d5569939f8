// What a change would change: lines before and after.
import { html } from "../lib/html.js";
import { stringifyJson } from "../lib/json.js";
import { Text } from "./text.js";

const CELLS_MAX = 1_000_000;
const CONTEXT = 3;

const linesOf = (value) =>
  (typeof value === "string" ? value : stringifyJson(value, 2) ?? "").split("\n");

// [[sign, line]] with sign " ", "-" or "+", by the longest common subsequence. Values too large to
// compare are shown as one replaced by the other.
export function diffLines(before, after) {
  const [a, b] = [linesOf(before), linesOf(after)];
  if (a.length * b.length > CELLS_MAX) {
    return [...a.map((line) => ["-", line]), ...b.map((line) => ["+", line])];
  }
  const width = b.length + 1;
  const common = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      common[i * width + j] =
        a[i] === b[j]
          ? common[(i + 1) * width + j + 1] + 1
          : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
    }
  }
  const found = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      found.push([" ", a[i]]);
      i += 1;
      j += 1;
    } else if (j >= b.length || (i < a.length && common[(i + 1) * width + j] >= common[i * width + j + 1])) {
      found.push(["-", a[i++]]);
    } else {
      found.push(["+", b[j++]]);
    }
  }
  return found;
}

// Equal lines far from a change are left out.
function shortened(lines) {
  const near = (at) => lines.slice(Math.max(0, at - CONTEXT), at + CONTEXT + 1).some(([sign]) => sign !== " ");
  const found = [];
  lines.forEach((line, at) => {
    if (near(at)) found.push(line);
    else if (found.at(-1)?.[0] !== "…") found.push(["…", ""]);
  });
  return found;
}

const WORDS = { "-": "removed", "+": "added" };

// The difference of two values (as JSON) or texts.
export function Diff({ before, after }) {
  const lines = diffLines(before, after);
  if (lines.every(([sign]) => sign === " ")) return html`<p class="hint">Nothing changes.</p>`;
  return html`<pre class="diff" tabindex="0" aria-label="Changes">${shortened(lines).map(
    ([sign, line]) => html`<span class=${sign === "-" ? "diff-old" : sign === "+" ? "diff-new" : ""}
      ><span class="diff-sign" aria-label=${WORDS[sign]}>${sign}</span> <${Text} value=${line} max=${2_000} /></span
    >`,
  )}</pre>`;
}
