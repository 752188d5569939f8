// One worker: health, facts, and the jobs it holds.
import { instant, useNow } from "../../lib/clock.js";
import { count, duration, percent } from "../../lib/format.js";
import { html } from "../../lib/html.js";
import { href, to, useTitle } from "../../lib/router.js";
import { useMay, useSession } from "../../lib/session.js";
import { Figure } from "../../parts/figures.js";
import { ListBody, useList } from "../../parts/listing.js";
import { PageHead } from "../../parts/shell.js";
import { Empty, Failure, Loading } from "../../parts/states.js";
import { Table } from "../../parts/table.js";
import { Text, Time } from "../../parts/text.js";
import { Health, Heartbeat, Queues, Version, failureRate } from "./facts.js";
import { Orders } from "./orders.js";

const PARENT = ["Workers", href("/workers")];

export function Worker({ name, worker, known, gone }) {
  const may = useMay();
  const { prefix } = useSession().view; // the server lists no jobs of all queues then
  useTitle(`${name} · Workers`);
  const head = html`<${PageHead} title=${html`<${Text} value=${name} max=${200} />`} parent=${PARENT}>
    ${worker && may.act("operate") && html`<${Orders} workers=${[worker]} />`}
  </${PageHead}>`;
  if (gone) return html`${head}<${Failure} error=${gone} />`;
  if (!known) return html`${head}<${Loading} what="worker" />`;
  if (!worker) {
    return html`${head}<section class="panel"><${Empty} title="There is no worker with this name">
      It may have ended: upkeep removes the records of workers that are gone.
      <a href=${href("/workers")}> Show all workers</a>
    </${Empty}></section>`;
  }
  return html`${head}
    <section aria-label="Health" class="health-line"><${Health} worker=${worker} /></section>
    <section aria-label="Counts" class="figures">
      <${Figure} name="Busy slots" tone="leased" value=${worker.running} note=${`of ${count(worker.capacity)}`} />
      <${Figure} name="Leased ahead" value=${worker.prefetched} />
      <${Figure} name="Done" tone="done" value=${worker.done} note="since it started" />
      <${Figure} name="Failed" tone="overdue" value=${worker.failed} note=${failureRate(worker) === null ? null : `${percent(failureRate(worker))} of the recent ones`} />
      <${Figure} name="Failures in a row" value=${worker.consecutive_failures} />
    </section>
    <div class="columns columns-detail">
      ${!prefix && html`<${HeldJobs} name=${name} />`}
      <${Facts} worker=${worker} />
    </div>`;
}

const Facts = ({ worker }) => html`<section class="panel" aria-labelledby="facts-title">
  <div class="panel-head"><h2 id="facts-title">Facts</h2></div>
  <dl class="fact-rows panel-body">
    <div><dt>Heartbeat</dt><dd><${Heartbeat} worker=${worker} /></dd></div>
    <div><dt>Started</dt><dd><${Time} value=${worker.started_at} /></dd></div>
    <div><dt>Version</dt><dd><${Version} value=${worker.version} /></dd></div>
    <div><dt>Host</dt><dd><${Text} value=${worker.host} max=${100} /></dd></div>
    <div><dt>Process</dt><dd>${String(worker.pid)}</dd></div>
    <div><dt>Queues</dt><dd><${Queues} worker=${worker} all /></dd></div>
    <div><dt>Labels</dt><dd><${Labels} labels=${worker.labels} /></dd></div>
    <div><dt>Tasks</dt><dd><${Text} value=${worker.tasks.join(", ") || "none"} max=${400} /></dd></div>
  </dl>
</section>`;

function Labels({ labels }) {
  const found = Object.entries(labels);
  if (found.length === 0) return html`<span class="unknown">none</span>`;
  return html`<span class="facts-line">
    ${found.slice(0, 50).map(([name, value]) => html`<span class="badge" key=${name}><${Text} value=${`${name}=${value}`} max=${80} /></span>`)}
    ${found.length > 50 && html`<span class="zero">and ${count(found.length - 50)} more</span>`}
  </span>`;
}

const JOBS_MAX = 50;
const COLUMNS = [
  {
    key: "id",
    title: "Job",
    cell: (row) => html`<a class="row-name" href=${href(to`/jobs/${row.id}`)}><${Text} value=${row.task} max=${80} /></a>
      <span class="hint id"><${Text} value=${row.id} max=${60} /></span>`,
  },
  { key: "queue", title: "Queue", from: "medium", cell: (row) => html`<a href=${href(to`/queues/${row.queue}`)}><${Text} value=${row.queue} max=${80} /></a>` },
  { key: "attempts", title: "Attempt", number: true, from: "wide", cell: (row) => count(row.attempts) },
  { key: "leased", title: "Held for", number: true, cell: (row) => html`<${HeldFor} row=${row} />` },
];

function HeldFor({ row }) {
  const age = useNow() - instant(row.leased_at);
  return html`<span title="Since it was leased">${duration(Math.max(0, Math.round(age / 1000))).replace(".0", "")}</span>`;
}

function HeldJobs({ name }) {
  const query = { worker: name, state: "leased", view: "row", limit: JOBS_MAX };
  const list = useList("v1/jobs", "rows", (row) => row.id, { query });
  return html`<section class="panel" aria-labelledby="held-title">
    <div class="panel-head">
      <h2 id="held-title">Jobs it holds</h2>
      <a href=${href("/jobs", { worker: name })}>All jobs of this worker</a>
    </div>
    <${ListBody} list=${list} what="jobs">
      <${Table}
        caption="Jobs that the worker runs or has leased ahead"
        columns=${COLUMNS}
        rows=${list.rows ?? []}
        keyOf=${(row) => row.id}
        empty=${html`<${Empty} title="It holds no job at the moment" />`}
      />
      ${list.rows?.length >= JOBS_MAX && html`<p class="hint table-note">The first ${count(JOBS_MAX)} are shown.</p>`}
    </${ListBody}>
  </section>`;
}
