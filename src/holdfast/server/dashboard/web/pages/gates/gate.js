// One gate: where it moves what, how it fares, and what its settings imply.
import { del, v1 } from "../../lib/api.js";
import { UNKNOWN, count } from "../../lib/format.js";
import { html } from "../../lib/html.js";
import { href, to } from "../../lib/router.js";
import { useMay } from "../../lib/session.js";
import { ActButton } from "../../parts/act.js";
import { Dialog } from "../../parts/dialog.js";
import { Icon } from "../../parts/icon.js";
import { Text, Time } from "../../parts/text.js";

const TONES = { running: "good", held: "warn", paused: "warn", unserved: "warn", failing: "critical" };
const MEANS = {
  held: "The queue takes or gives no jobs at the moment",
  unserved: "No process was given the URL of its broker",
};

// The state, and why.
export const GateState = ({ gate }) => html`<span class=${`badge badge-${TONES[gate.state] ?? ""}`} title=${MEANS[gate.state]}>${gate.state}</span>
  ${gate.text && html`<span class="reason"><${Text} value=${gate.text} max=${200} /></span>`}`;

// "main: orders.new → mail", in the direction of the messages.
export function Flow({ gate }) {
  const { direction, broker, source, exchange, routing_key: key, queue } = gate;
  const place = direction === "inlet" ? source : [exchange, key].filter(Boolean).join(" / ");
  const outside = html`<span class="zero"><${Text} value=${broker} max=${40} />:</span> <${Text} value=${place} max=${80} />`;
  const inside = html`<a href=${href(to`/queues/${queue}`)}><${Text} value=${queue} max=${80} /></a>`;
  const [from, till] = direction === "inlet" ? [outside, inside] : [inside, outside];
  return html`<span class="flow">${from} <span aria-label="to">→</span> ${till}</span>`;
}

export function Counts({ gate }) {
  const found = Object.entries(gate.counts);
  if (gate.processes === 0) return html`<span class="unknown" title="No process runs it">${UNKNOWN}</span>`;
  if (found.length === 0) return html`<span class="zero">nothing yet</span>`;
  return html`<span class="facts-line">
    ${found.slice(0, 6).map(([name, value]) => html`<span key=${name}>${count(value)} <span class="zero"><${Text} value=${name} max=${30} /></span></span>`)}
  </span>`;
}

const ROWS = [
  ["task", "Task"],
  ["tenant", "Tenant"],
  ["group", "Group"],
  ["key", "Key"],
  ["content_type", "Content type"],
];

export function Gate({ gate, onClose, onEdit, pause }) {
  const may = useMay();
  const acts = may.act("operate");
  const footer = html`${acts &&
  html`<${ActButton}
      label="Remove…"
      style=""
      act=${() => del(v1`gates/${gate.name}`)}
      ask=${{ title: `Remove the gate ${gate.name}?`, text: "Its jobs, and the messages at the broker, stay.", label: "Remove the gate", danger: true }}
      done=${`Removed ${gate.name}`}
      after=${onClose}
    />
    ${pause}
    <button class="button" onClick=${onEdit}>Edit</button>`}
    <button class="button" onClick=${onClose}>Close</button>`;
  return html`<${Dialog} title=${`${gate.direction === "inlet" ? "Inlet" : "Outlet"} ${gate.name}`} onClose=${onClose} footer=${footer}>
    <p><${Flow} gate=${gate} /></p>
    <div><${GateState} gate=${gate} /></div>
    <dl class="fact-rows">
      <div><dt>Processes</dt><dd>${count(gate.processes)}${gate.since && html`<span class="hint"> since <${Time} value=${gate.since} /></span>`}</dd></div>
      <div><dt>Moved</dt><dd><${Counts} gate=${gate} /></dd></div>
      ${ROWS.filter(([name]) => gate[name]).map(([name, title]) => html`<div key=${name}><dt>${title}</dt><dd><code><${Text} value=${gate[name]} max=${200} /></code></dd></div>`)}
      ${gate.dead && html`<div><dt>Messages</dt><dd>become dead letters of the queue</dd></div>`}
      <div><dt>In flight</dt><dd>at most ${count(gate.prefetch)} in each process</dd></div>
    </dl>
    ${gate.notes.length > 0 &&
    html`<ul class="notes">${gate.notes.map((note) => html`<li key=${note}><${Icon} name="info" /><span><${Text} value=${note} max=${300} /></span></li>`)}</ul>`}
  </${Dialog}>`;
}
