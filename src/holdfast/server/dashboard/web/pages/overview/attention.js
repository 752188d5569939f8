// What needs attention, each entry with its remedy: a button if the caller may act, or a command.
import { send } from "../../lib/api.js";
import { sentence, visible } from "../../lib/format.js";
import { html } from "../../lib/html.js";
import { useAction } from "../../lib/resource.js";
import { href, to } from "../../lib/router.js";
import { useMay } from "../../lib/session.js";
import { usePref } from "../../lib/prefs.js";
import { CopyButton } from "../../parts/copy.js";
import { Icon } from "../../parts/icon.js";
import { Text, Time } from "../../parts/text.js";

const SHOWN = 5;
const NAME_MAX = 40;
const WORDS = { critical: "Critical", warn: "Warning", info: "Note" };

export function Attention({ items }) {
  const [all, setAll] = usePref("attention-all", false);
  if (items.length === 0) {
    return html`<p class="all-clear"><${Icon} name="check" />Nothing needs attention.</p>`;
  }
  const shown = all ? items : items.slice(0, SHOWN);
  return html`<section class="panel attention" aria-labelledby="attention-title">
    <h2 id="attention-title" class="sr-only">Needs attention</h2>
    <ul>
      ${shown.map((item) => html`<${Item} key=${[item.kind, item.queue, item.name].join("/")} item=${item} />`)}
    </ul>
    ${items.length > SHOWN &&
    html`<button class="link attention-more" onClick=${() => setAll(!all)}>
      ${all ? "Show fewer" : `Show ${items.length - SHOWN} more`}
    </button>`}
  </section>`;
}

// Where to look closer, as [words, address]; null if there is no page for it.
function closerLook({ kind, queue, name }) {
  if (kind === "dead_letters" || kind === "dead_depth") return ["See dead letters", href("/dead", { queue })];
  if (kind === "breaker_open") return ["See the breakers", href("/breakers")];
  if (kind === "version_skew") return ["See the workers", href("/workers")];
  if (kind.startsWith("worker_")) return [`Open ${name.slice(0, NAME_MAX)}`, href("/workers", { name })];
  if (kind.startsWith("gate_")) return [`Open ${name}`, href("/gates", { name })];
  return queue ? [`Open ${queue}`, href(to`/queues/${queue}`)] : null;
}

function Item({ item }) {
  const { severity, text, since, remedy, command, act } = item;
  const closer = closerLook(item);
  const may = useMay();
  const acting = useAction(
    ({ method, path, body }) => send(method, path.replace(/^\//, ""), { body: body ?? undefined }),
    { done: act ? `${act.label}: done` : "" },
  );
  const offered = act && may.act("operate");
  return html`<li class=${`attention-item attention-${severity}`}>
    <${Icon} name=${severity} />
    <div class="attention-text">
      <p>
        <span class="sr-only">${WORDS[severity]}: </span><strong><${Text} value=${sentence(text)} max=${300} /></strong>
        ${since && html`<span class="hint"> raised <${Time} value=${since} /></span>`}
      </p>
      ${remedy && html`<p class="hint"><${Text} value=${sentence(remedy)} max=${300} /></p>`}
    </div>
    <div class="actions">
      ${closer && html`<a class="button button-quiet" href=${closer[1]}>${visible(closer[0])}</a>`}
      ${command && !offered && html`<${CopyButton} text=${`holdfast ${command}`} label="Copy command" />`}
      ${offered &&
      html`<button class="button" disabled=${acting.busy} onClick=${() => acting.run(act)}>${act.label}</button>`}
    </div>
  </li>`;
}
