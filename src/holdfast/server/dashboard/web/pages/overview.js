// The overview: what needs attention first, then throughput, then every queue.
import { html, useMemo } from "../lib/html.js";
import { count } from "../lib/format.js";
import { useLive } from "../lib/live.js";
import { href, useTitle } from "../lib/router.js";
import { Figure, jobsBehind } from "../parts/figures.js";
import { PageHead } from "../parts/shell.js";
import { Empty, Failure, Loading } from "../parts/states.js";
import { Attention } from "./overview/attention.js";
import { QueueTable } from "./overview/queues.js";
import { Throughput } from "./overview/throughput.js";

export default function Overview({ query }) {
  const { data, gone } = useLive("overview");
  useTitle("Overview");
  return html`<${PageHead} title="Overview" />
    ${gone && html`<${Failure} error=${gone} />`}
    ${!data && !gone && html`<${Loading} what="overview" />`}
    ${data && html`<${Content} data=${data} search=${query.q ?? ""} />`}`;
}

function Content({ data, search }) {
  // A row is the queue's own object, which stays the same until its values change.
  const rows = useQueueRows(data.queues);
  if (rows.length === 0) {
    return html`<${Attention} items=${data.attention} />
      <${Empty} title="No queues yet" command="holdfast enqueue --wait -- echo hello">
        A queue appears with its first job. Enqueue one:
      </${Empty}>`;
  }
  return html`<${Attention} items=${data.attention} />
    <${Totals} totals=${data.totals} workers=${data.workers} />
    <${Throughput} />
    <${QueueTable} rows=${rows} search=${search} />`;
}

const rowCache = new WeakMap(); // the queue's object → its row

function useQueueRows(queues) {
  return useMemo(
    () =>
      Object.keys(queues).map((name) => {
        const values = queues[name];
        if (!rowCache.has(values)) rowCache.set(values, { name, ...values });
        return rowCache.get(values);
      }),
    [queues],
  );
}

const TOTALS = [
  ["ready", "Ready"],
  ["leased", "Leased"],
  ["delayed", "Delayed"],
  ["blocked", "Blocked"],
  ["overdue", "Overdue"],
  ["dead", "Dead"],
];

function Totals({ totals, workers }) {
  const { alive, unhealthy, slots, busy } = workers ?? {};
  const known = slots !== null && slots !== undefined;
  const note = unhealthy ? `${unhealthy} unhealthy` : known ? `${count(busy)} of ${count(slots)} busy` : null;
  return html`<section aria-label="Totals" class="figures">
    ${TOTALS.map(
      ([state, name]) => html`<${Figure}
        key=${state}
        name=${name}
        tone=${state}
        value=${totals[state]}
        estimated=${totals.estimated?.includes(state)}
        ...${jobsBehind(state)}
      />`,
    )}
    <${Figure} name="Workers" value=${alive} note=${note} link=${href("/workers")} />
  </section>`;
}

