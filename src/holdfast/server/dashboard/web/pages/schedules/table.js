// All schedules with their rule, past runs, next tick and acts.
import { html, useState } from "../../lib/html.js";
import { plural } from "../../lib/format.js";
import { href, to } from "../../lib/router.js";
import { useMay } from "../../lib/session.js";
import { Table } from "../../parts/table.js";
import { Text, Time } from "../../parts/text.js";
import { instant } from "../../lib/clock.js";
import { PauseButton, RunButton } from "./acts.js";
import { RunStrip } from "./strip.js";

const COLUMNS = [
  {
    key: "name",
    title: "Schedule",
    sort: (row) => row.name,
    cell: (row) => html`<span class="facts-line">
        <a class="row-name" href=${href("/schedules", { name: row.name })}><${Text} value=${row.name} /></a>
        ${row.paused && html`<span class="badge badge-warn">paused</span>`}
      </span>
      <span class="narrow hint"><${Text} value=${row.words} max=${120} /></span>`,
  },
  {
    key: "words",
    title: "Rule",
    from: "wide",
    cell: (row) => html`<${Text} value=${row.words} max=${120} />
      <span class="rule"><${Rule} row=${row} /></span>`,
  },
  {
    key: "runs",
    title: "Past runs",
    help: "The job of each past tick, oldest first",
    from: "medium",
    cell: (row) => html`<${RunStrip} schedule=${row} />`,
  },
  {
    key: "next",
    title: "Next tick",
    sort: (row) => instant(row.next_tick),
    cell: (row) => (row.paused ? html`<span class="zero">when resumed</span>` : html`<${Time} value=${row.next_tick} />`),
  },
  {
    key: "job",
    title: "Job",
    from: "wide",
    sort: (row) => row.task,
    cell: (row) => html`<${Text} value=${row.task} max=${60} />
      <span class="hint"> in <a href=${href(to`/queues/${row.queue}`)}><${Text} value=${row.queue} max=${60} /></a></span>`,
  },
  { key: "acts", title: html`<span class="sr-only">Acts</span>`, from: "medium", cell: (row) => html`<${Acts} row=${row} />` },
];

// The cron rule; its zone, and an interval, are in the words.
export const Rule = ({ row }) =>
  row.cron ? html`<code><${Text} value=${row.cron} max=${100} /></code>` : null;

function Acts({ row }) {
  const may = useMay();
  if (!may.act("operate")) return null;
  return html`<span class="row-acts"><${RunButton} row=${row} /><${PauseButton} row=${row} /></span>`;
}

const SHOWN = 50;

export function ScheduleTable({ rows }) {
  const [most, setMost] = useState(SHOWN);
  return html`<${Table}
      caption="Schedules with their rule, past runs and next tick"
      columns=${COLUMNS}
      rows=${rows.slice(0, most)}
      keyOf=${(row) => row.name}
      order=${["name", "asc"]}
    />
    ${rows.length > most &&
    html`<button class="link table-note" onClick=${() => setMost(most + SHOWN)}>
      Show more of ${plural(rows.length - most, "schedule")}
    </button>`}`;
}
