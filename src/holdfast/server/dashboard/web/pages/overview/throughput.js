// Totals and throughput of a time, from the stored history.
import { get } from "../../lib/api.js";
import { instant } from "../../lib/clock.js";
import { rate } from "../../lib/format.js";
import { html, useMemo } from "../../lib/html.js";
import { usePref } from "../../lib/prefs.js";
import { useResource } from "../../lib/resource.js";
import { Chart } from "../../parts/chart.js";
import { Figure } from "../../parts/figures.js";
import { Failure, Loading } from "../../parts/states.js";
import { Choices } from "../../parts/tabs.js";

// Title, step of the history, how often it is read again, and its length, in milliseconds.
const RANGES = {
  "15m": ["15 min", "minute", 15_000, 900_000],
  "1h": ["1 h", "minute", 30_000, 3_600_000],
  "24h": ["24 h", "hour", 300_000, 86_400_000],
  "7d": ["7 d", "hour", 600_000, 604_800_000],
};
const FLOWS = [
  ["arrivals", "Arrived", "--ready"],
  ["completed", "Completed", "--done"],
  ["failed", "Failed attempts", "--overdue"],
  ["dead", "Died", "--dead"],
];
const DEPTHS = [
  ["ready", "Ready", "--ready"],
  ["leased", "Leased", "--leased"],
];

export function Throughput() {
  const [chosen, setChosen] = usePref("range");
  const range = chosen in RANGES ? chosen : "1h";
  const [, step, every, span] = RANGES[range];
  const { data, error, reload } = useResource(
    (signal) => get("v1/history", { step, from: range }, { signal }),
    [range],
    { every },
  );
  const choices = Object.entries(RANGES).map(([key, [title]]) => [key, title]);
  return html`<section class="panel" aria-labelledby="throughput-title">
    <div class="panel-head">
      <h2 id="throughput-title">Throughput</h2>
      <${Choices} label="Time shown" choices=${choices} chosen=${range} onChoose=${setChosen} />
    </div>
    ${error && !data && html`<${Failure} error=${error} retry=${reload} />`}
    ${!error && !data && html`<div class="chart-room"><${Loading} what="history" /></div>`}
    ${data && html`<${History} points=${data.points} span=${span} />`}
  </section>`;
}

function History({ points, span }) {
  const { times, flows, depths, sums } = useMemo(() => shape(points), [points]);
  if (points.length < 2) {
    return html`<p class="hint chart-room">
      No history yet: a server or worker with upkeep takes a snapshot each minute.
    </p>`;
  }
  return html`<div class="figures figures-inner">
      ${FLOWS.map(([key, name, color]) => html`<${Figure} key=${key} name=${name} tone=${color.slice(2)} value=${sums[key]} />`)}
    </div>
    <div class="charts">
      <${Chart} title="Rates" times=${times} series=${flows} format=${rate} group="overview" span=${span} />
      <${Chart} title="Ready and leased" times=${times} series=${depths} group="overview" span=${span} />
    </div>`;
}

// Rates at the end of each point's time, like its depths.
function shape(points) {
  const times = points.map(({ at, seconds }) => instant(at) + seconds * 1000);
  // Programs that enqueue without counting are known by the arrivals only.
  const number = (point, key) => (key === "arrivals" ? point.arrivals : (point.counts[key] ?? 0));
  const flow = (key) => points.map((each) => (each.seconds > 0 ? number(each, key) / each.seconds : null));
  const sum = (key) => points.reduce((total, each) => total + number(each, key), 0);
  return {
    times,
    flows: FLOWS.map(([key, label, color], i) => ({ label, color, values: flow(key), fill: i === 0 })),
    depths: DEPTHS.map(([key, label, color], i) => ({
      label,
      color,
      values: points.map((point) => point[key]),
      fill: i === 0,
    })),
    sums: Object.fromEntries(FLOWS.map(([key]) => [key, sum(key)])),
  };
}
