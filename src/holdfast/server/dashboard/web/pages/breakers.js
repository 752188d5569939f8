// Breakers: which tasks and hosts are shut off at the moment, why, and by whom.
import { post, v1 } from "../lib/api.js";
import { count, plural, wholeDuration } from "../lib/format.js";
import { html } from "../lib/html.js";
import { href } from "../lib/router.js";
import { useMay } from "../lib/session.js";
import { ActButton } from "../parts/act.js";
import { AsOf, ListBody, useList } from "../parts/listing.js";
import { PageHead } from "../parts/shell.js";
import { Empty } from "../parts/states.js";
import { Table } from "../parts/table.js";
import { Text } from "../parts/text.js";

const TONES = { open: "critical", half_open: "warn", closed: "good" };
const WORDS = { half_open: "half open" };
const RANK = { open: 0, half_open: 1, closed: 2 };

// "task:mail:send" → ["task", "mail:send"]
function parts(name) {
  const at = name.indexOf(":");
  return [name.slice(0, at), name.slice(at + 1)];
}

function Name({ row }) {
  const [kind, name] = parts(row.name);
  const text = html`<${Text} value=${name} max=${120} />`;
  return html`<span class="facts-line">
      ${kind === "task" ? html`<a class="row-name" href=${href("/jobs", { task: name })}>${text}</a>` : html`<span class="row-name">${text}</span>`}
      ${kind && html`<span class="badge">${kind}</span>`}
    </span>
    <span class="narrow hint"><${Why} row=${row} /></span>`;
}

const State = ({ row }) =>
  html`<span class=${`badge badge-${TONES[row.state] ?? ""}`}>${WORDS[row.state] ?? row.state}</span>`;

// Why it is in this state, and what happens next.
function Why({ row }) {
  const { state, opened_by: by, probe_in_ms: probe, last, failures } = row;
  if (state === "closed") {
    return failures > 0
      ? html`${count(failures)} failed in a row. <${Last} text=${last} />`
      : html`<span class="zero">Jobs start as usual.</span>`;
  }
  if (by) return html`Opened by <strong><${Text} value=${by} max=${80} /></strong>; stays open until it is closed. <${Last} text=${last} />`;
  if (state === "half_open") return html`One job probes whether it works again. <${Last} text=${last} />`;
  const next = probe === null ? "" : probe > 0 ? `; next probe in ${wholeDuration(Math.ceil(probe / 1000))}` : "; the next job probes it";
  return html`${count(failures)} failed in a row${next}. <${Last} text=${last} />`;
}

const Last = ({ text }) => text && html`<span class="last-error">Last error: <${Text} value=${text} max=${200} /></span>`;

function Acts({ row }) {
  const may = useMay();
  if (!may.act("operate")) return null;
  const [kind, name] = parts(row.name);
  if (row.state === "closed") {
    return html`<${ActButton}
      label="Open…"
      name=${name}
      act=${() => post(v1`breakers/${row.name}/open`)}
      ask=${{
        title: `Open the breaker of ${name}?`,
        text: `${kind === "task" ? "Jobs of this task" : "Webhooks to this host"} wait until somebody closes the breaker. Running ones go on.`,
        label: "Open the breaker",
      }}
      done=${`Opened the breaker of ${name}`}
    />`;
  }
  return html`<${ActButton}
    label="Close"
    name=${name}
    style=""
    act=${() => post(v1`breakers/${row.name}/close`)}
    done=${`Closed the breaker of ${name}; its jobs start again`}
  />`;
}

const COLUMNS = [
  { key: "name", title: "Breaker", sort: (row) => parts(row.name)[1], cell: (row) => html`<${Name} row=${row} />` },
  { key: "state", title: "State", sort: (row) => RANK[row.state] ?? -1, cell: (row) => html`<${State} row=${row} />` },
  { key: "why", title: "Why", from: "wide", cell: (row) => html`<span class="why"><${Why} row=${row} /></span>` },
  {
    key: "openings",
    title: "Openings",
    help: "How often it opened since it last worked",
    number: true,
    from: "wide",
    sort: (row) => row.openings,
    cell: (row) => html`<span class=${row.openings > 0 ? "" : "zero"}>${count(row.openings)}</span>`,
  },
  { key: "policy", title: "Opens after", from: "wide", cell: (row) => html`<${Text} value=${row.policy || "–"} max=${80} />` },
  {
    key: "changed",
    title: "Changed",
    from: "medium",
    sort: (row) => -row.changed_ms_ago,
    cell: (row) => html`<span class="nowrap">${wholeDuration(row.changed_ms_ago / 1000)} ago</span>`,
  },
  { key: "acts", title: html`<span class="sr-only">Acts</span>`, cell: (row) => html`<span class="row-acts"><${Acts} row=${row} /></span>` },
];

function summaryOf(rows) {
  const open = rows.filter(({ state }) => state !== "closed").length;
  return plural(rows.length, "breaker") + (open ? `, ${count(open)} not closed` : "");
}

export default function Breakers() {
  const list = useList("v1/breakers", "breakers", (row) => row.name);
  return html`<${PageHead} title="Breakers"><${AsOf} list=${list} /></${PageHead}>
    <${ListBody} list=${list} what="breakers">
      <section class="panel" aria-label="Breakers">
        ${list.rows?.length > 0 &&
        html`<div class="panel-head">
          <h2>${summaryOf(list.rows ?? [])}</h2>
          <p class="hint">Shared by all workers</p>
        </div>`}
        <${Table}
          caption="Circuit breakers with their state and why"
          columns=${COLUMNS}
          rows=${list.rows ?? []}
          keyOf=${(row) => row.name}
          order=${["state", "asc"]}
          empty=${html`<${Empty} title="No breakers yet" command=${'@app.task(breaker="5 failures, 30s")'}>
            A breaker stops the jobs of a task that keeps failing, until one probe succeeds: so an outage
            behind it does not use up the attempts of every job. Give a task one:
          </${Empty}>`}
        />
      </section>
    </${ListBody}>`;
}
