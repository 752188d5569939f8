// Gates: inlets from and outlets to message brokers, their state and what they moved.
import { post, v1 } from "../lib/api.js";
import { count, plural } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { changeQuery, href } from "../lib/router.js";
import { useMay } from "../lib/session.js";
import { ActButton } from "../parts/act.js";
import { AsOf, ListBody, useList } from "../parts/listing.js";
import { PageHead } from "../parts/shell.js";
import { Empty } from "../parts/states.js";
import { Table } from "../parts/table.js";
import { Text } from "../parts/text.js";
import { GateForm } from "./gates/form.js";
import { Counts, Flow, Gate, GateState } from "./gates/gate.js";

const RANK = { failing: 0, unserved: 1, held: 2, paused: 3, running: 4 };

const COLUMNS = [
  {
    key: "name",
    title: "Gate",
    sort: (row) => row.name,
    cell: (row) => html`<span class="facts-line">
        <a class="row-name" href=${href("/gates", { name: row.name })}><${Text} value=${row.name} max=${80} /></a>
        <span class="badge">${row.direction}</span>
      </span>
      <span class="narrow hint"><${Flow} gate=${row} /></span>`,
  },
  { key: "flow", title: "From → to", from: "wide", cell: (row) => html`<${Flow} gate=${row} />` },
  {
    key: "state",
    title: "State",
    sort: (row) => RANK[row.state] ?? -1,
    cell: (row) => html`<${GateState} gate=${row} />`,
  },
  {
    key: "processes",
    title: "Processes",
    help: "Processes that run the gate",
    number: true,
    from: "medium",
    sort: (row) => row.processes,
    cell: (row) => html`<span class=${row.processes ? "" : "zero"}>${count(row.processes)}</span>`,
  },
  { key: "counts", title: "Moved", from: "wide", cell: (row) => html`<${Counts} gate=${row} />` },
  { key: "acts", title: html`<span class="sr-only">Acts</span>`, from: "medium", cell: (row) => html`<${Acts} row=${row} />` },
];

function Acts({ row }) {
  const may = useMay();
  return may.act("operate") ? html`<span class="row-acts"><${PauseGate} row=${row} /></span>` : null;
}

export const PauseGate = ({ row, style }) =>
  row.state === "paused"
    ? html`<${ActButton} label="Resume" name=${row.name} style=${style} act=${() => post(v1`gates/${row.name}/resume`)} done=${`Resumed ${row.name}`} />`
    : html`<${ActButton} label="Pause" name=${row.name} style=${style} act=${() => post(v1`gates/${row.name}/pause`)} done=${`Paused ${row.name}`} />`;

export default function Gates({ query }) {
  const list = useList("v1/gates", "gates", (row) => row.name);
  const [adds, setAdds] = useState(false);
  const [edits, setEdits] = useState(false);
  const may = useMay();
  const shown = query.name ? list.rows?.find(({ name }) => name === query.name) : null;
  const close = () => changeQuery({ name: "" });
  return html`<${PageHead} title="Gates">
      <${AsOf} list=${list} />
      ${may.act("operate") && html`<button class="button button-primary" onClick=${() => setAdds(true)}>Add a gate</button>`}
    </${PageHead}>
    <${ListBody} list=${list} what="gates">
      <section class="panel" aria-label="Gates">
        ${list.rows?.length > 0 &&
        html`<div class="panel-head">
          <h2>${plural(list.rows?.length, "gate")}</h2>
          <p class="hint">Counts are since the processes that run a gate have started</p>
        </div>`}
        <${Table}
          caption="Gates with their state and what they moved"
          columns=${COLUMNS}
          rows=${list.rows ?? []}
          keyOf=${(row) => row.name}
          order=${["name", "asc"]}
          empty=${html`<${Empty} title="No gates yet" command="holdfast gate add orders --broker main --source orders.new --queue mail --task send">
            A gate connects a queue to a message broker, RabbitMQ or Amazon SQS: an inlet turns messages into
            jobs, an outlet turns jobs into messages.
          </${Empty}>`}
        />
      </section>
      ${shown && !edits && html`<${Gate} gate=${shown} onClose=${close} onEdit=${() => setEdits(true)} pause=${html`<${PauseGate} row=${shown} style="" />`} />`}
      ${shown && edits && html`<${GateForm} old=${shown} onClose=${() => setEdits(false)} />`}
      ${adds && html`<${GateForm} onClose=${() => setAdds(false)} />`}
    </${ListBody}>`;
}
