// One schedule: its rule in words, the next ten ticks, past runs, and the job of each tick.
import { get, v1 } from "../../lib/api.js";
import { count, duration } from "../../lib/format.js";
import { html, useState } from "../../lib/html.js";
import { useResource } from "../../lib/resource.js";
import { href, to, useTitle } from "../../lib/router.js";
import { useMay } from "../../lib/session.js";
import { AsOf, ListBody } from "../../parts/listing.js";
import { PageHead } from "../../parts/shell.js";
import { Empty, Failure, Loading } from "../../parts/states.js";
import { Table } from "../../parts/table.js";
import { State, Text, Time } from "../../parts/text.js";
import { Value } from "../../parts/value.js";
import { DeleteButton, PauseButton, RunButton } from "./acts.js";
import { ScheduleForm } from "./form.js";
import { Legend, Strip, runText, useRuns } from "./strip.js";
import { Rule } from "./table.js";
import { Ticks } from "./ticks.js";

const PARENT = ["Schedules", href("/schedules")];
const TICKS = 10;
const RUNS = 60;

export function Schedule({ name, list }) {
  const row = list.rows?.find((each) => each.name === name);
  useTitle(`${name} · Schedules`);
  return html`<${ListBody} list=${list} what="schedule">
    ${row
      ? html`<${Content} row=${row} list=${list} />`
      : html`<${PageHead} title=${name} parent=${PARENT} />
          <section class="panel"><${Empty} title="There is no schedule with this name">
            It may have been deleted. <a href=${href("/schedules")}>Show all schedules</a>
          </${Empty}></section>`}
  </${ListBody}>`;
}

function Content({ row, list }) {
  const may = useMay();
  const [edits, setEdits] = useState(false);
  const acts = may.act("operate");
  return html`<${PageHead} title=${row.name} parent=${PARENT}>
      <${AsOf} list=${list} />
      ${acts &&
      html`<${RunButton} row=${row} style="button-primary" />
        <${PauseButton} row=${row} style="" />
        <button class="button" onClick=${() => setEdits(true)}>Edit</button>
        <${DeleteButton} row=${row} />`}
    </${PageHead}>
    <p class="lead">
      ${row.paused && html`<span class="badge badge-warn">paused</span> `}<${Text} value=${row.words} max=${300} />
      <span class="hint"> <${Rule} row=${row} /></span>
    </p>
    <section class="panel" aria-labelledby="runs-title">
      <div class="panel-head">
        <h2 id="runs-title">Past runs</h2>
        <${Legend} />
      </div>
      <${Runs} row=${row} />
    </section>
    <div class="columns">
      <section class="panel" aria-labelledby="ticks-title">
        <div class="panel-head"><h2 id="ticks-title">Next ten ticks</h2></div>
        <${NextTicks} row=${row} />
      </section>
      <section class="panel" aria-labelledby="job-title">
        <div class="panel-head"><h2 id="job-title">The job of each tick</h2></div>
        <${Job} row=${row} />
      </section>
    </div>
    ${edits && html`<${ScheduleForm} old=${row} onClose=${() => setEdits(false)} />`}`;
}

function NextTicks({ row }) {
  const { data, error, reload } = useResource(
    (signal) => get(v1`schedules/${row.name}/ticks`, { count: TICKS }, { signal }),
    [row.name, row.cron, row.every_ms, row.zone, row.next_tick, row.paused],
  );
  if (row.paused) {
    return html`<${Empty} title="None while it is paused">
      Once resumed, it goes on with the next tick of its rule; ticks during the pause are skipped.
    </${Empty}>`;
  }
  if (error && !data) return html`<${Failure} error=${error} retry=${reload} />`;
  if (!data) return html`<${Loading} what="ticks" />`;
  if (data.ticks.length === 0) return html`<${Empty} title="Its rule has no more ticks" />`;
  return html`<${Ticks} ticks=${data.ticks} zone=${row.zone} />`;
}

const COLUMNS = [
  {
    key: "tick",
    title: "Tick",
    cell: (run) =>
      run.state === null
        ? html`<${Time} value=${run.tick} />`
        : html`<a href=${href(to`/jobs/${run.id}`)}><${Time} value=${run.tick} /></a>`,
  },
  {
    key: "state",
    title: "Job",
    cell: (run) => (run.state === null ? html`<span class="zero">${runText(run)}</span>` : html`<${State} value=${run.state} />`),
  },
  { key: "started", title: "Started", from: "medium", cell: (run) => html`<${Time} value=${run.leased_at} />` },
  { key: "took", title: "Took", number: true, cell: (run) => duration(run.duration_ms === null ? null : run.duration_ms / 1000) },
  { key: "attempts", title: "Attempts", number: true, from: "medium", cell: (run) => (run.state === null ? "" : count(run.attempts)) },
];

function Runs({ row }) {
  const { data, error, reload } = useRuns(row, RUNS);
  const [all, setAll] = useState(false);
  if (error && !data) return html`<${Failure} error=${error} retry=${reload} />`;
  if (!data) return html`<${Loading} what="runs" />`;
  if (data.length === 0) {
    return html`<${Empty} title="No tick has passed yet">
      Ticks are enqueued by upkeep, which servers and workers run. Jobs run by hand are not listed here.
    </${Empty}>`;
  }
  return html`<div class="panel-body"><${Strip} runs=${data} /></div>
    <${Table} caption="Past ticks and their jobs" columns=${COLUMNS} rows=${all ? data : data.slice(0, 5)} keyOf=${(run) => run.id} />
    ${data.length > 5 &&
    html`<button class="link table-note" onClick=${() => setAll(!all)}>${all ? "Show fewer" : `Show all ${count(data.length)}`}</button>`}`;
}

const MISSED = {
  skip: () => "skipped",
  once: () => "one job for all of them",
  all: ({ missed_max: most }) => `one job for each, at most the latest ${count(most)}`,
};

const Job = ({ row }) => html`<dl class="fact-rows panel-body">
    <div><dt>Task</dt><dd><${Text} value=${row.task} max=${200} /></dd></div>
    <div><dt>Queue</dt><dd><a href=${href(to`/queues/${row.queue}`)}><${Text} value=${row.queue} max=${100} /></a></dd></div>
    <div><dt>Priority</dt><dd>${count(row.priority)}</dd></div>
    <div><dt>Tenant</dt><dd>${row.tenant === null ? html`<span class="unknown">none</span>` : html`<${Text} value=${row.tenant} max=${100} />`}</dd></div>
    <div>
      <dt>Missed ticks</dt>
      <dd>${(MISSED[row.missed] ?? (() => row.missed))(row)} <span class="hint">missed after ${duration(row.grace_ms / 1000)}</span></dd>
    </div>
  </dl>
  <div class="panel-body"><${Value} value=${row.payload} label="Payload" /></div>`;
