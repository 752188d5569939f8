// All workers, and orders to the selected ones.
import { count, percent, plural } from "../../lib/format.js";
import { html, useMemo, useRef, useState } from "../../lib/html.js";
import { useKey } from "../../lib/keyboard.js";
import { changeQuery, href, route } from "../../lib/router.js";
import { useMay } from "../../lib/session.js";
import { useStore } from "../../lib/store.js";
import { Gauge } from "../../parts/figures.js";
import { Icon } from "../../parts/icon.js";
import { Empty } from "../../parts/states.js";
import { Table } from "../../parts/table.js";
import { Text } from "../../parts/text.js";
import { Health, Heartbeat, Queues, Version, busyShare, failureRate } from "./facts.js";
import { Orders } from "./orders.js";

const RANK = { unhealthy: 0, degraded: 1, healthy: 2 };

const COLUMNS = [
  {
    key: "name",
    title: "Worker",
    sort: (row) => row.name,
    cell: (row) => html`<a class="row-name" href=${href("/workers", { name: row.name })}><${Text} value=${row.name} max=${80} /></a>
      <span class="narrow hint">
        ${count(row.running)} of ${plural(row.capacity, "slot")} busy · heartbeat <${Heartbeat} worker=${row} />
      </span>`,
  },
  {
    key: "health",
    title: "Health",
    sort: (row) => RANK[row.health] ?? -1,
    cell: (row) => html`<${Health} worker=${row} />`,
  },
  {
    key: "running",
    title: "Busy slots",
    number: true,
    from: "medium",
    sort: busyShare,
    cell: (row) => html`<span class="slots">
      <span class="zero">${count(row.running)} of ${count(row.capacity)}</span>
      <${Gauge} value=${busyShare(row)} label=${`${count(row.running)} of ${plural(row.capacity, "slot")} busy`} />
    </span>`,
  },
  {
    key: "jobs",
    title: "Jobs held",
    help: "Jobs it runs or has leased ahead",
    number: true,
    from: "medium",
    sort: (row) => row.running + row.prefetched,
    cell: (row) => {
      const held = row.running + row.prefetched;
      if (held === 0) return html`<span class="zero">0</span>`;
      return html`<a href=${href("/jobs", { state: "leased", worker: row.name })}>${count(held)}</a>`;
    },
  },
  { key: "queues", title: "Queues", from: "wide", cell: (row) => html`<${Queues} worker=${row} />` },
  {
    key: "failed",
    title: "Failing",
    help: "Share of recent attempts that failed; in the tooltip all since it started",
    number: true,
    from: "wide",
    sort: failureRate,
    cell: (row) => html`<span
      class=${failureRate(row) > 0 ? "" : "zero"}
      title=${`${count(row.failed)} failed, ${count(row.done)} done since it started`}
    >${percent(failureRate(row))}</span>`,
  },
  {
    key: "version",
    title: "Version",
    from: "wide",
    sort: (row) => row.version,
    cell: (row) => html`<${Version} value=${row.version} />`,
  },
  {
    key: "heartbeat",
    title: "Heartbeat",
    from: "wide",
    sort: (row) => row.heartbeat_age_ms,
    cell: (row) => html`<${Heartbeat} worker=${row} />`,
  },
];

const matches = (row, wanted) =>
  [row.name, row.host, row.health, row.version, ...Object.keys(row.queues)].some((text) =>
    text.toLowerCase().includes(wanted),
  );

export function WorkerTable({ rows }) {
  const field = useRef(null);
  const may = useMay();
  const search = useStore(route).query.q ?? "";
  const [chosen, setChosen] = useState(new Set());
  useKey("/", "Search the workers", () => field.current.focus());
  const found = useMemo(() => rows.filter((row) => matches(row, search.toLowerCase())), [rows, search]);
  const selected = found.filter(({ name }) => chosen.has(name));
  return html`<section class="panel" aria-labelledby="workers-title">
    <div class="panel-head">
      <h2 id="workers-title">${selected.length ? `${plural(selected.length, "worker")} selected` : "All workers"}</h2>
      <div class="toolbar">
        ${selected.length > 0
          ? html`<${Orders} workers=${selected} onDone=${() => setChosen(new Set())} />
              <button class="button button-quiet" onClick=${() => setChosen(new Set())}>Clear the selection</button>`
          : html`<label class="search">
              <${Icon} name="search" /><span class="sr-only">Search the workers</span>
              <input
                type="search"
                ref=${field}
                value=${search}
                placeholder="Name, host, queue…"
                onInput=${(event) => changeQuery({ q: event.target.value })}
              /><kbd>/</kbd>
            </label>`}
      </div>
    </div>
    <${Table}
      caption="Workers with their health, slots, queues and versions"
      scrolls
      columns=${COLUMNS}
      rows=${found}
      keyOf=${(row) => row.name}
      order=${["name", "asc"]}
      selection=${may.act("operate") ? { chosen, onChange: setChosen } : undefined}
      empty=${html`<${Empty} title=${`No worker has “${search}” in its name, host or queues`} />`}
    />
  </section>`;
}
