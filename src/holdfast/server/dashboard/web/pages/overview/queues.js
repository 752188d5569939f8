// Every queue with its state bar, rates, waits, utilisation and sparkline.
import { UNKNOWN, count, duration, plural, rate } from "../../lib/format.js";
import { html, useMemo, useRef, useState } from "../../lib/html.js";
import { useKey } from "../../lib/keyboard.js";
import { usePref } from "../../lib/prefs.js";
import { changeQuery, href, to } from "../../lib/router.js";
import { Gauge, Sparkline, StateBar, jobsBehind } from "../../parts/figures.js";
import { Icon } from "../../parts/icon.js";
import { Empty } from "../../parts/states.js";
import { Table } from "../../parts/table.js";

const number = (key, title, more = {}) => ({
  key,
  title,
  number: true,
  sort: (row) => row[key],
  cell: (row) => {
    const text = count(row[key], row.estimated?.includes(key));
    if (Number(row[key]) === 0) return html`<span class="zero">${text}</span>`;
    const { link, leads } = jobsBehind(key, row.name);
    return html`<a class=${`count count-${key}`} href=${link} title=${leads}>${text}</a>`;
  },
  ...more,
});

const COLUMNS = [
  {
    key: "name",
    title: "Queue",
    sort: (row) => row.name,
    cell: (row) => html`<${Name} row=${row} />`,
  },
  { key: "states", title: "Jobs by state", from: "wide", cell: (row) => html`<${StateBar} counts=${row} />` },
  number("ready", "Ready"),
  number("leased", "Leased", { from: "medium" }),
  number("delayed", "Delayed", { from: "widest" }),
  number("dead", "Dead"),
  {
    ...number("oldest_age", "Oldest", { from: "medium", help: "Age of the oldest ready job" }),
    cell: (row) => duration(row.oldest_age),
  },
  { ...number("rate_in", "In", { from: "wide", help: "Jobs enqueued" }), cell: (row) => rate(row.rate_in) },
  { ...number("rate_out", "Out", { from: "wide", help: "Jobs ended" }), cell: (row) => rate(row.rate_out) },
  {
    ...number("wait_p95", "Wait p50 · p95", {
      from: "wide",
      help: "Half of the jobs, and 95 of 100, waited at most this long",
    }),
    cell: (row) =>
      (row.wait_p95 ?? null) === null
        ? UNKNOWN
        : html`${duration(row.wait_p50)}<span class="zero"> · </span>${duration(row.wait_p95)}`,
  },
  {
    ...number("utilisation", "Busy", { from: "wide", help: "Busy share of the workers' slots" }),
    cell: (row) => html`<${Gauge} value=${row.utilisation} label=${workersText(row)} />`,
  },
  {
    key: "sparkline",
    title: "Ended, 15 min",
    from: "wide",
    cell: (row) => html`<${Sparkline} values=${row.sparkline} label="Jobs ended per minute" />`,
  },
];

const workersText = ({ workers, slots }) =>
  workers === null || workers === undefined
    ? "Workers unknown"
    : `${plural(workers, "worker")}, ${plural(slots, "slot")}`;

function Name({ row }) {
  return html`<span class="queue-name">
    <a href=${href(to`/queues/${row.name}`)}>${row.name}</a>
    ${row.paused && html`<span class="badge badge-warn" title=${row.paused_reason}>paused</span>`}
    ${row.accepting === false && html`<span class="badge">not accepting</span>`}
    ${row.workers === 0 && row.ready > 0 && html`<span class="badge badge-warn">no worker</span>`}
  </span>
  <span class="narrow"><${StateBar} counts=${row} /></span>`;
}

const prefixOf = (name) => /^[^._-]+(?=[._-])/.exec(name)?.[0] ?? "";

// Queues that share a prefix, where at least two do; the others come first, without a head.
function groupsOf(rows, closed, toggle) {
  const found = Map.groupBy(rows, (row) => prefixOf(row.name));
  const alone = [...found].flatMap(([prefix, some]) => (prefix && some.length > 1 ? [] : some));
  const shared = [...found].filter(([prefix, some]) => prefix && some.length > 1);
  shared.sort(([a], [b]) => a.localeCompare(b, "en"));
  const groups = shared.map(([prefix, some]) => {
    const open = !closed.includes(prefix);
    const head = html`<${GroupHead} prefix=${prefix} rows=${some} open=${open} onToggle=${() => toggle(prefix)} />`;
    return { key: prefix, rows: some, open, head };
  });
  return alone.length ? [{ key: "", rows: alone }, ...groups] : groups;
}

function GroupHead({ prefix, rows, open, onToggle }) {
  const sum = (key) => {
    const total = rows.reduce((before, row) => before + Number(row[key] ?? 0), 0);
    return count(total, rows.some((row) => row.estimated?.includes(key)));
  };
  const dead = sum("dead");
  return html`<button class="group-toggle" aria-expanded=${open ? "true" : "false"} onClick=${onToggle}>
    <${Icon} name=${open ? "down" : "right"} /><strong>${prefix}</strong>
    <span class="hint">
      ${plural(rows.length, "queue")} · ${sum("ready")} ready · ${sum("leased")} leased${dead !== "0" && ` · ${dead} dead`}
    </span>
  </button>`;
}

export function QueueTable({ rows, search }) {
  const field = useRef(null);
  const [grouped, setGrouped] = usePref("grouped");
  const [closed, setClosed] = useState([]);
  useKey("/", "Search the queues", () => field.current.focus());
  const found = useMemo(() => {
    const wanted = search.toLowerCase();
    return rows.filter(({ name }) => name.toLowerCase().includes(wanted));
  }, [rows, search]);
  const toggle = (prefix) =>
    setClosed(closed.includes(prefix) ? closed.filter((each) => each !== prefix) : [...closed, prefix]);
  return html`<section class="panel" aria-labelledby="queues-title">
    <div class="panel-head">
      <h2 id="queues-title">Queues <span class="hint">${count(found.length)}</span></h2>
      <div class="toolbar">
        <label class="search">
          <${Icon} name="search" /><span class="sr-only">Search the queues</span>
          <input
            type="search"
            ref=${field}
            value=${search}
            placeholder="Search"
            onInput=${(event) => changeQuery({ q: event.target.value })}
          /><kbd>/</kbd>
        </label>
        <label class="check">
          <input type="checkbox" checked=${grouped} onChange=${() => setGrouped(!grouped)} />Group by prefix
        </label>
      </div>
    </div>
    <${Table}
      caption="Queues with their counts, rates, waits and workers"
      columns=${COLUMNS}
      rows=${found}
      groups=${grouped ? groupsOf(found, closed, toggle) : undefined}
      keyOf=${(row) => row.name}
      order=${["name", "asc"]}
      empty=${html`<${Empty} title=${`No queue has “${search}” in its name`} />`}
    />
  </section>`;
}
