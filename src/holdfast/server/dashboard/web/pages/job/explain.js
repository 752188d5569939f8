// Why the job is not running, each reason with a button for its remedy.
import { patch, post, v1 } from "../../lib/api.js";
import { sentence } from "../../lib/format.js";
import { html } from "../../lib/html.js";
import { useAction } from "../../lib/resource.js";
import { href, to } from "../../lib/router.js";
import { useMay } from "../../lib/session.js";
import { CopyButton } from "../../parts/copy.js";
import { Icon } from "../../parts/icon.js";
import { Failure } from "../../parts/states.js";
import { Text, Time } from "../../parts/text.js";

// Commands that the page can carry out itself: [pattern, label, act(match)].
const ACTS = [
  [/^job expedite (\S+)$/, "Expedite it", ([, id]) => post(v1`jobs/${id}/expedite`)],
  [/^job retry (\S+)$/, "Put it back", ([, id]) => post(v1`jobs/${id}/retry`)],
  [/^job edit (\S+) --expires (\S+)$/, "Give it more time", ([, id, expires]) => patch(v1`jobs/${id}`, { expires })],
  [/^queue resume (\S+)$/, "Resume the queue", ([, name]) => post(v1`queues/${name}/resume`)],
  [/^breaker close (\S+)$/, "Close the breaker", ([, name]) => post(v1`breakers/${name}/close`)],
  [
    /^worker uncordon (\S+)$/,
    "Uncordon the worker",
    ([, name]) => post("v1/workers/orders", { order: "uncordon", workers: [name] }),
  ],
];
// Commands that show something: [pattern, label, address(match)].
const LINKS = [
  [/^job explain (\S+)$/, "See that job", ([, id]) => href(to`/jobs/${id}`)],
  [/^queue limits (\S+)$/, "See the limits", ([, name]) => href(to`/queues/${name}`, { tab: "limits" })],
  [/^worker list$/, "See the workers", () => href("/workers")],
];
const find = (known, command) => {
  for (const [pattern, label, act] of known) {
    const match = pattern.exec(command);
    if (match) return { label, act: () => act(match) };
  }
  return null;
};

// The text as a sentence, unless it begins with the name of a worker.
const WORDS = /^(it|its|no|nothing|queue|job|workers?|limit|attempt|at least|the|\d+ )\b/;
const said = (text) => (WORDS.test(text) ? sentence(text) : text);

const CALM = ["done", "cancelled", "running", "ready", "delayed"];
const BAD = ["dead", "expired", "overdue", "worker_lost", "queue_gone", "broker_down"];
const toneOf = (code) => (BAD.includes(code) ? "critical" : CALM.includes(code) ? "info" : "warn");

export function Explain({ explanation, reload, title }) {
  const { data, error } = explanation;
  if (error && !data) return html`<${Failure} error=${error} retry=${explanation.reload} />`;
  if (!data) return html`<div class="panel explain-room" aria-busy="true"></div>`;
  return html`<section class="panel attention" aria-labelledby="explain-title">
    <h2 id="explain-title" class="sr-only">${title}</h2>
    <ul>
      ${data.reasons.map((reason, i) => html`<${Reason}
        key=${`${reason.code}/${i}`}
        reason=${reason}
        reload=${reload}
      />`)}
    </ul>
  </section>`;
}

function Reason({ reason, reload }) {
  const { code, text, remedy, command, at } = reason;
  const tone = toneOf(code);
  const may = useMay();
  const ended = ["done", "cancelled", "dead"].includes(code); // the head of the page has the act
  const act = may.act("operate") && !ended ? find(ACTS, command) : null;
  const link = find(LINKS, command);
  const acting = useAction(async () => {
    await act.act();
    reload();
  }, { done: act ? `${act.label}: done` : "" });
  const logs = command.startsWith("job logs ");
  const copied = command && !act && !link && !logs && !ended ? `holdfast ${command}` : null;
  return html`<li class=${`attention-item attention-${tone}`}>
    <${Icon} name=${tone} />
    <div class="attention-text">
      <p>
        <strong><${Text} value=${said(text)} max=${400} /></strong>
        ${at && html`<span class="hint"> <${Time} value=${at} /></span>`}
      </p>
      ${remedy && !logs && !ended &&
      html`<p class="hint">
        ${sentence(remedy)}${copied ? html`: <code><${Text} value=${copied} max=${200} /></code>` : "."}
      </p>`}
    </div>
    <div class="actions">
      ${copied && html`<${CopyButton} text=${copied} label="Copy command" />`}
      ${link && html`<a class="button" href=${link.act()}>${link.label}</a>`}
      ${act && html`<button
        class="button"
        disabled=${acting.busy}
        onClick=${() => acting.run()}
      >${act.label}</button>`}
    </div>
  </li>`;
}
