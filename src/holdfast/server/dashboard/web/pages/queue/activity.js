// Charts of a queue with one shared cursor, and the scaling answer in words.
import { get } from "../../lib/api.js";
import { instant } from "../../lib/clock.js";
import { compact, duration, rate } from "../../lib/format.js";
import { html, useMemo } from "../../lib/html.js";
import { usePref } from "../../lib/prefs.js";
import { useResource } from "../../lib/resource.js";
import { Chart } from "../../parts/chart.js";
import { Empty, Failure, Loading } from "../../parts/states.js";
import { Choices } from "../../parts/tabs.js";
import { Scaling } from "./scaling.js";

// Title, step of the history, how often it is read again, and its length, in milliseconds.
const RANGES = {
  "1h": ["1 h", "minute", 15_000, 3_600_000],
  "24h": ["24 h", "hour", 300_000, 86_400_000],
  "7d": ["7 d", "hour", 600_000, 604_800_000],
  "60d": ["60 d", "day", 3_600_000, 5_184_000_000],
};
const CHOICES = Object.entries(RANGES).map(([key, [title]]) => [key, title]);

const perSecond = (key) => (point) => (point.seconds > 0 ? (point.counts[key] ?? 0) / point.seconds : null);
const depth = (key) => (point) => point[key] ?? null;
const quantile = (kind, key) => (point) => point[kind]?.[key] ?? null;

// Title, how a value is shown, and the lines: label, colour, value of a point, filled.
const CHARTS = [
  ["Arrivals and completions", rate, [
    ["Arrived", "--ready", (point) => (point.seconds > 0 ? point.arrivals / point.seconds : null), true],
    ["Completed", "--done", perSecond("completed")],
  ]],
  ["Failures", rate, [
    ["Failed attempts", "--overdue", perSecond("failed"), true],
    ["Died", "--dead", perSecond("dead")],
  ]],
  ["Depth", compact, [
    ["Ready", "--ready", depth("ready"), true],
    ["Leased", "--leased", depth("leased")],
    ["Delayed", "--delayed", depth("delayed")],
    ["Blocked", "--blocked", depth("blocked")],
  ]],
  ["Wait, from due to started", duration, [
    ["95 of 100 within", "--accent", quantile("wait", "p95"), true],
    ["half within", "--muted", quantile("wait", "p50")],
  ]],
  ["Run, from started to ended", duration, [
    ["95 of 100 within", "--accent", quantile("run", "p95"), true],
    ["half within", "--muted", quantile("run", "p50")],
  ]],
  ["Age of the oldest ready job", duration, [["Oldest", "--ready", (point) => point.oldest_age ?? null, true]]],
];

export function Activity({ name, queue }) {
  const [chosen, setChosen] = usePref("queue-range", "1h");
  const range = chosen in RANGES ? chosen : "1h";
  const [, step, every, span] = RANGES[range];
  const { data, error, reload } = useResource(
    (signal) => get("v1/history", { queue: name, step, from: range }, { signal }),
    [name, range],
    { every },
  );
  return html`<${Scaling} name=${name} paused=${queue.paused} />
    <section class="panel" aria-labelledby="charts-title">
      <div class="panel-head">
        <h2 id="charts-title">History</h2>
        <${Choices} label="Time shown" choices=${CHOICES} chosen=${range} onChoose=${setChosen} />
      </div>
      ${error && !data && html`<${Failure} error=${error} retry=${reload} />`}
      ${!error && !data && html`<div class="queue-charts-room"><${Loading} what="history" /></div>`}
      ${data && html`<${Charts} points=${data.points} span=${span} />`}
    </section>`;
}

function Charts({ points, span }) {
  const times = useMemo(() => points.map(({ at, seconds }) => instant(at) + seconds * 1000), [points]);
  const charts = useMemo(
    () =>
      CHARTS.map(([title, format, lines]) => ({
        title,
        format,
        series: lines.map(([label, color, value, fill]) => ({ label, color, fill, values: points.map(value) })),
      })),
    [points],
  );
  if (points.length < 2) {
    return html`<${Empty} title="No history yet">
      A server or worker with upkeep takes a snapshot each minute: the charts begin then.
    </${Empty}>`;
  }
  return html`<div class="charts">
    ${charts.map(
      ({ title, format, series }) => html`<${Chart}
        key=${title}
        title=${title}
        times=${times}
        series=${series}
        format=${format}
        group="queue"
        height=${150}
        span=${span}
      />`,
    )}
  </div>`;
}
