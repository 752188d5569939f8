// Small pictures of numbers: state bar, sparkline, gauge, figure.
import { UNKNOWN, compact, count, percent } from "../lib/format.js";
import { html, memo } from "../lib/html.js";
import { href } from "../lib/router.js";

// The states of jobs that are not finished, in the order of a job's life.
export const STATES = ["blocked", "delayed", "ready", "leased", "overdue", "dead"];

// "overdue" leases are among the leased ones: the bar shows them apart.
const shown = (counts, state) =>
  state === "leased" ? Math.max(0, counts.leased - (counts.overdue ?? 0)) : (counts[state] ?? 0);

// Jobs by state as one bar; its text names every part.
export const StateBar = memo(({ counts }) => {
  const estimated = counts.estimated ?? [];
  const parts = STATES.map((state) => [state, shown(counts, state)]).filter(([, size]) => size > 0);
  const total = parts.reduce((sum, [, size]) => sum + Number(size), 0);
  const text = parts
    .map(([state, size]) => `${count(size, estimated.includes(state))} ${state}`)
    .join(", ");
  const title = text || "no unfinished jobs";
  return html`<span class="state-bar" role="img" aria-label=${title} title=${title}>
    ${parts.map(
      ([state, size]) => html`<span
        key=${state}
        class=${`bar-${state}`}
        style=${{ flexGrow: String(Math.max(size / total, 0.02)) }}
      />`,
    )}
  </span>`;
});

const [WIDTH, HEIGHT] = [72, 20];

// A line of the last values, oldest first; unknown ones (null) are gaps.
export const Sparkline = memo(({ values, label }) => {
  const known = (values ?? []).filter((value) => value !== null);
  if (known.length === 0) return html`<span class="unknown">${UNKNOWN}</span>`;
  const most = Math.max(...known, 1);
  const step = WIDTH / Math.max(values.length - 1, 1);
  let path = "";
  let gap = true;
  values.forEach((value, i) => {
    if (value === null) {
      gap = true;
      return;
    }
    const y = HEIGHT - 2 - (value / most) * (HEIGHT - 4);
    // "h0" makes a value between two gaps a dot.
    path += `${gap ? "M" : "L"}${(i * step).toFixed(1)} ${y.toFixed(1)}${gap ? "h0" : ""}`;
    gap = false;
  });
  const text = `${label}: latest ${count(values.at(-1))}, most ${count(most === 1 ? Math.max(...known) : most)}`;
  return html`<svg
    class="sparkline"
    viewBox=${`0 0 ${WIDTH} ${HEIGHT}`}
    role="img"
    aria-label=${text}
  >
    <title>${text}</title>
    <path d=${path} />
  </svg>`;
});

// A share from 0 to 1 with its bar; unknown is a dash.
export const Gauge = memo(({ value, label }) => {
  if (value === null || value === undefined) return html`<span class="unknown">${UNKNOWN}</span>`;
  const width = `${Math.min(100, Math.max(0, value * 100))}%`;
  return html`<span class="gauge" title=${label}>
    <span class="gauge-track"><span class="gauge-fill" style=${{ width }} /></span>${percent(value)}
  </span>`;
});

// Where a number of jobs leads. Jobs that are ready or blocked can be listed only among all waiting
// ones, and overdue leases only among all leases: the link says so.
const LISTED = {
  ready: ["waiting"],
  blocked: ["waiting"],
  delayed: ["scheduled", "failed"],
  overdue: ["leased"],
};
const WIDER = { ready: "all waiting jobs", blocked: "all waiting jobs", overdue: "all leased jobs" };

export function jobsBehind(state, queue) {
  const leads = `See ${WIDER[state] ?? "these jobs"}`;
  const link = state === "dead" ? href("/dead", { queue }) : href("/jobs", { state: LISTED[state] ?? [state], queue });
  return { link, leads };
}

// One number with its name. With `link` it leads to what it counts, as `leads` says.
export function Figure({ name, value, note, estimated, link, leads, tone }) {
  const large = typeof value === "number" && value >= 10_000_000;
  const text = typeof value === "string" ? value : (large ? compact : count)(value, estimated);
  const content = html`<span class="figure-name">${tone && html`<span class=${`dot dot-${tone}`} />`}${name}</span>
    <span class=${value ? "figure-value" : "figure-value figure-zero"} title=${large ? count(value) : undefined}>${text}</span>
    ${note && html`<span class="figure-note">${note}</span>`}`;
  return link
    ? html`<a class="figure" href=${link} title=${leads}>${content}</a>`
    : html`<div class="figure">${content}</div>`;
}
