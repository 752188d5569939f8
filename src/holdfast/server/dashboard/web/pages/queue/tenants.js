// The tenants of a queue: their shares and how long they wait.
import { count, duration, percent } from "../../lib/format.js";
import { html } from "../../lib/html.js";
import { href, to } from "../../lib/router.js";
import { Gauge } from "../../parts/figures.js";
import { Empty } from "../../parts/states.js";
import { Table } from "../../parts/table.js";
import { Text } from "../../parts/text.js";

const columnsOf = (queue) => [
  {
    key: "tenant",
    title: "Tenant",
    sort: (row) => row.tenant,
    cell: ({ tenant, noisy }) => html`<a href=${href("/jobs", { queue, tenant })}>
        ${tenant === "" ? "no tenant" : html`<${Text} value=${tenant.slice(0, 80)} />${tenant.length > 80 && "…"}`}
      </a>
      ${noisy && html` <span class="badge badge-warn" title="It uses more of the queue than its part">noisy</span>`}`,
  },
  {
    key: "share",
    title: "Share",
    number: true,
    help: "Part of the queue's recent processing time",
    sort: (row) => row.share,
    cell: (row) => html`<${Gauge} value=${row.share} label=${`${percent(row.share)} of the recent processing time`} />`,
  },
  { key: "weight", title: "Weight", number: true, from: "medium", sort: (row) => row.weight, cell: (row) => count(row.weight) },
  { key: "waiting", title: "Waiting", number: true, sort: (row) => row.waiting, cell: (row) => count(row.waiting) },
  { key: "leased", title: "Leased", number: true, from: "medium", sort: (row) => row.leased, cell: (row) => count(row.leased) },
  {
    key: "oldest",
    title: "Oldest waits",
    number: true,
    sort: (row) => row.oldest_age_ms ?? null,
    cell: ({ oldest_age_ms: age, waiting }) =>
      (age ?? null) === null ? (waiting === 0 ? "none" : duration(null)) : duration(age / 1000),
  },
];

const columnCache = new Map(); // queue → columns: a table needs the same object at each render

function columns(queue) {
  if (!columnCache.has(queue)) {
    columnCache.clear();
    columnCache.set(queue, columnsOf(queue));
  }
  return columnCache.get(queue);
}

const WORDS = {
  shares: "Tenants take turns, by weight.",
  noisy: "Tenants that use too much of the queue yield to the others.",
};

export function Tenants({ queue, view }) {
  const settings = html`<a href=${href(to`/queues/${queue.name}`, { tab: "settings" })}>settings</a>`;
  if ((view ?? null) === null) {
    return html`<div class="panel"><h2 class="sr-only">Tenants</h2><${Empty} title="This store has no fairness between tenants">
      Jobs start in its own order.
    </${Empty}></div>`;
  }
  if (queue.fairness === "off") {
    return html`<div class="panel"><h2 class="sr-only">Tenants</h2><${Empty} title="Fairness is off">
      Jobs start by priority and time only, so one tenant with many jobs can hold up all others. Set fairness
      to “shares” or “noisy” in the ${settings}; then every tenant is listed here with its share.
    </${Empty}></div>`;
  }
  const empty = html`<${Empty} title="No tenant has jobs in this queue now">
    A job names its tenant when it is enqueued: <code>--tenant NAME</code>, or <code>tenant</code> in the API.
  </${Empty}>`;
  return html`<section class="panel" aria-labelledby="tenants-title">
    <div class="panel-head">
      <h2 id="tenants-title">Tenants</h2>
      <span class="hint">${WORDS[queue.fairness]} Weights are in the ${settings}.</span>
    </div>
    <${Table}
      caption="Tenants with their share and waiting time"
      columns=${columns(queue.name)}
      rows=${view?.tenants ?? []}
      keyOf=${(row) => row.tenant}
      order=${["share", "desc"]}
      empty=${empty}
    />
  </section>`;
}
