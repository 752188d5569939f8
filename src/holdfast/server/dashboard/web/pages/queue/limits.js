// The limits of a queue, who holds their slots, and the form that changes them.
import { del, v1 } from "../../lib/api.js";
import { count, duration, plural } from "../../lib/format.js";
import { html, useState } from "../../lib/html.js";
import { useAction } from "../../lib/resource.js";
import { href, to } from "../../lib/router.js";
import { useMay } from "../../lib/session.js";
import { confirm } from "../../parts/dialog.js";
import { Gauge } from "../../parts/figures.js";
import { Empty } from "../../parts/states.js";
import { Table } from "../../parts/table.js";
import { Text } from "../../parts/text.js";
import { LimitDialog } from "./limit_dialog.js";
import { boundsText } from "./texts.js";

const HOLDERS = 5;

export function Limits({ queue, view, onAnswer }) {
  const may = useMay();
  const [edited, setEdited] = useState(null);
  const limits = queue.limits ?? [];
  const slots = view?.slots ?? [];
  const offered = may.act("operate");
  if ((view ?? null) === null && limits.length === 0) {
    return html`<div class="panel"><h2 class="sr-only">Limits</h2><${Empty} title="This store has no limits">
      It cannot bound the jobs that run at the same time over all workers. Start fewer workers, or with fewer slots.
    </${Empty}></div>`;
  }
  const add = offered && html`<button class="button" onClick=${() => setEdited({})}>Add a limit…</button>`;
  return html`<section class="panel" aria-labelledby="limits-title">
      <div class="panel-head">
        <h2 id="limits-title">Limits</h2>
        ${limits.length > 0 && add}
      </div>
      ${limits.length === 0
        ? html`<${Empty} title="No limits: jobs start as fast as workers are free">
            A limit bounds the jobs that run at the same time, or start per second, over all workers; for the whole
            queue, for one task, or for each tenant. ${add && html`<span class="empty-act">${add}</span>`}
          </${Empty}>`
        : html`<ul class="limits">
            ${limits.map(
              (limit) => html`<${LimitRow}
                key=${limit.name}
                queue=${queue.name}
                limit=${limit}
                slots=${slots.filter((slot) => slot.limit === limit.name)}
                offered=${offered}
                onEdit=${() => setEdited(limit)}
                onAnswer=${onAnswer}
              />`,
            )}
          </ul>`}
    </section>
    ${limits.length > 0 && html`<${Holders} slots=${slots} known=${Boolean(view)} />`}
    ${edited &&
    html`<${LimitDialog}
      queue=${queue.name}
      limit=${edited}
      taken=${limits.map(({ name }) => name)}
      onClose=${() => setEdited(null)}
      onAnswer=${onAnswer}
    />`}`;
}

function LimitRow({ queue, limit, slots, offered, onEdit, onAnswer }) {
  const { name, key, task, concurrency } = limit;
  const removing = useAction(() => del(v1`queues/${queue}/limits/${name}`), { done: `Limit ${name} removed` });
  const remove = async () => {
    const sure = await confirm({
      title: `Remove the limit ${name}?`,
      text: "It ends at once, for all workers.",
      label: "Remove it",
      danger: true,
    });
    const answer = sure && (await removing.run());
    if (answer) onAnswer({ limits: answer.limits });
  };
  const used = slots.reduce((sum, slot) => sum + Number(slot.used), 0);
  const busy = key ? `${plural(used, "slot")} held, for ${plural(slots.length, "key")}` : `${plural(used, "slot")} held`;
  return html`<li class="limit">
    <div class="limit-text">
      <strong><${Text} value=${name} max=${120} /></strong>
      <span>${boundsText(limit)}</span>
      <span class="hint">
        ${key ? html`for each <code><${Text} value=${key} max=${120} /></code>` : "all jobs together"}${task
          ? html` of task <${Text} value=${task} max=${120} />`
          : ""}
      </span>
    </div>
    <span class="limit-used">
      ${concurrency && !key && html`<${Gauge} value=${used / concurrency} label=${`${count(used)} of ${count(concurrency)} slots`} />`}
      <span class="hint">${busy}</span>
    </span>
    ${offered &&
    html`<div class="actions">
      <button class="button" aria-label=${`Change the limit ${name}`} onClick=${onEdit}>Change…</button>
      <button class="button button-quiet" aria-label=${`Remove the limit ${name}`} disabled=${removing.busy} onClick=${remove}>
        Remove…
      </button>
    </div>`}
  </li>`;
}

const COLUMNS = [
  {
    key: "limit",
    title: "Limit",
    sort: (row) => row.limit,
    cell: (row) => html`<${Text} value=${row.limit} max=${80} />`,
  },
  {
    key: "key",
    title: "Key",
    sort: (row) => row.key,
    cell: (row) => (row.key ? html`<${Text} value=${row.key} max=${80} />` : html`<span class="zero">all jobs</span>`),
  },
  {
    key: "used",
    title: "Slots held",
    number: true,
    sort: (row) => row.used,
    cell: ({ used, concurrency }) =>
      concurrency ? `${count(used)} of ${count(concurrency)}` : count(used),
  },
  {
    key: "free",
    title: "Next start",
    number: true,
    from: "medium",
    help: "When the rate allows another job to start",
    cell: ({ free_ms: ms, rate }) => (rate ? (ms > 0 ? `in ${duration(ms / 1000)}` : "now") : "any time"),
  },
  {
    key: "holders",
    title: "Held by",
    cell: ({ holders, used }) => html`<span class="holders">
      ${holders.slice(0, HOLDERS).map((id) => html`<a key=${id} href=${href(to`/jobs/${id}`)}><code>${id.slice(-12)}</code></a>`)}
      ${used > Math.min(holders.length, HOLDERS) && html`<span class="hint">and ${count(used - Math.min(holders.length, HOLDERS))} more</span>`}
    </span>`,
  },
];

function Holders({ slots, known }) {
  const used = slots.filter((slot) => slot.used > 0 || slot.free_ms > 0);
  return html`<section class="panel" aria-labelledby="holders-title">
    <div class="panel-head"><h2 id="holders-title">Slots in use</h2></div>
    <${Table}
      caption="Slots of the limits and the jobs that hold them"
      columns=${COLUMNS}
      rows=${used}
      keyOf=${(row) => `${row.limit}\n${row.key}`}
      order=${["used", "desc"]}
      empty=${html`<${Empty} title=${known ? "No job holds a slot now" : "The slots are not known yet"} />`}
    />
  </section>`;
}
