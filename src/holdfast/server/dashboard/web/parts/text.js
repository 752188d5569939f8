// Texts and values from the store, shown as text whatever they contain.
import { html, useState } from "../lib/html.js";
import { UNKNOWN, localTime, relativeTime, timeText, utcTime, visible } from "../lib/format.js";
import { instant, useNow } from "../lib/clock.js";
import { usePref } from "../lib/prefs.js";

// A text of the store: isolated, its control characters visible. With `max` the rest of a longer
// one is shown only on request.
export function Text({ value, max = 0 }) {
  const [all, setAll] = useState(false);
  if (value === null || value === undefined) return html`<span class="unknown">${UNKNOWN}</span>`;
  const text = String(value);
  const cut = max > 0 && text.length > max && !all;
  return html`<bdi class="text">${visible(cut ? text.slice(0, max) : text)}</bdi>${
    cut &&
    html`<button type="button" class="link" onClick=${() => setAll(true)}>
      … ${(text.length - max).toLocaleString("en")} more characters
    </button>`
  }`;
}

// A time, as relative, local or UTC by preference; the other two are its tooltip.
export function Time({ value, prefer }) {
  const [preference] = usePref("time");
  const wanted = prefer ?? preference;
  if (instant(value) === null) return html`<span class="unknown">${UNKNOWN}</span>`;
  const title = `${localTime(value)} here · ${utcTime(value)}`;
  const iso = new Date(instant(value)).toISOString();
  if (wanted === "relative") return html`<${RelativeTime} value=${value} iso=${iso} title=${title} />`;
  return html`<time datetime=${iso} title=${title}>${timeText(value, wanted)}</time>`;
}

function RelativeTime({ value, iso, title }) {
  const age = Math.abs(Date.now() - instant(value));
  const at = useNow(age > 3_600_000 ? 30_000 : 1_000);
  return html`<time datetime=${iso} title=${title}>${relativeTime(value, at)}</time>`;
}

// The word for a state of a job, with its colour.
export const State = ({ value }) => html`<span class=${`state state-${value}`}>${value}</span>`;

// A key of the keyboard.
export const Key = ({ name }) =>
  name.split(" ").map((each) => html`<kbd>${each}</kbd> `);
