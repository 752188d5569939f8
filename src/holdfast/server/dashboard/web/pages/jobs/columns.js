// The columns of the jobs page, and the choice of them.
import { instant, now, useNow } from "../../lib/clock.js";
import { UNKNOWN, count, duration, visible } from "../../lib/format.js";
import { html, useMemo } from "../../lib/html.js";
import { usePref } from "../../lib/prefs.js";
import { changeQuery, href, to } from "../../lib/router.js";
import { Menu } from "../../parts/menu.js";
import { State, Time } from "../../parts/text.js";

const LABELS_SHOWN = 3;

// A text that never takes more room than its column; the tooltip has more of it.
function Cut({ value, max = 40 }) {
  if (value === null || value === undefined || value === "") return html`<span class="unknown">${UNKNOWN}</span>`;
  const text = String(value);
  if (text.length <= max) return html`<bdi>${visible(text)}</bdi>`;
  return html`<bdi title=${visible(text.slice(0, 300))}>${visible(text.slice(0, max))}…</bdi>`;
}

// A value that becomes a filter when it is pressed.
function FilterCell({ name, value }) {
  if (value === null || value === undefined) return html`<span class="unknown">${UNKNOWN}</span>`;
  const act = () => changeQuery({ [name]: value, after: "" }, { replace: false });
  return html`<button class="cell-filter" title=${`Show only ${name} ${visible(value.slice(0, 80))}`} onClick=${act}>
    <${Cut} value=${value} max=${32} />
  </button>`;
}

// Ids that sort by time begin alike, so their middle is left out.
const shortId = (id) => (id.length > 20 ? `${id.slice(0, 8)}…${id.slice(-8)}` : id);

// The state in a word: a waiting job may be due later or wait after a failed attempt, and a lease
// may have expired.
export function stateOf({ state, attempts, due_at: due, deadline_at: deadline }) {
  if (state === "leased") return (instant(deadline) ?? Infinity) < now() ? "overdue" : state;
  if (state !== "waiting") return state;
  if (attempts > 0) return "failed";
  return instant(due) > now() ? "scheduled" : state;
}

const Head = ({ row }) => html`<a class="job-id" href=${href(to`/jobs/${row.id}`)} title=${row.id}
    ><bdi>${visible(shortId(row.id))}</bdi></a
  ><span class="job-sub"><${Cut} value=${row.task} max=${28} /> in <${Cut} value=${row.queue} max=${20} />, <${Time} value=${row.created_at} /></span>`;

function StateCell({ row }) {
  useNow(5_000); // a job becomes due, and a lease overdue, without a change of the row
  const cancelling = row.cancel_requested && row.state === "leased";
  return html`<${State} value=${stateOf(row)} />${cancelling && html` <span class="badge badge-warn">cancelling</span>`}${row.gone && html` <span
    class="badge"
    title="It was deleted, or no longer matches the filter"
  >changed</span>`}`;
}

const Labels = ({ labels }) => {
  const all = Object.entries(labels);
  if (all.length === 0) return html`<span class="unknown">${UNKNOWN}</span>`;
  return html`<span class="cell-labels">
    ${all.slice(0, LABELS_SHOWN).map(
      ([name, value]) => html`<span class="badge" key=${name}><${Cut} value=${`${name}=${value}`} max=${28} /></span>`,
    )}
    ${all.length > LABELS_SHOWN && html`<span class="hint">${count(all.length - LABELS_SHOWN)} more</span>`}
  </span>`;
};

const filter = (key, title, more) => ({
  key,
  title,
  cell: (row) => html`<${FilterCell} name=${key} value=${row[key]} />`,
  ...more,
});
const time = (key, title, more) => ({
  key,
  title,
  cell: (row) => html`<span class="nowrap"><${Time} value=${row[key]} /></span>`,
  ...more,
});
const text = (key, title, more) => ({ key, title, cell: (row) => html`<${Cut} value=${row[key]} />`, ...more });
const number = (key, title, more) => ({
  key,
  title,
  number: true,
  cell: (row) => html`<span class=${Number(row[key]) === 0 ? "zero" : ""}>${count(row[key])}</span>`,
  ...more,
});

const seconds = (ms) => (ms === null || ms === undefined ? null : ms / 1000);
const attemptsText = ({ attempts, max_attempts: most }) => `${count(attempts)} of ${most ? count(most) : "∞"}`;

const COLUMNS = [
  { key: "id", title: "Job", cell: (row) => html`<${Head} row=${row} />` },
  { key: "state", title: "State", cell: (row) => html`<${StateCell} row=${row} />` },
  filter("queue", "Queue", { from: "medium" }),
  filter("task", "Task", { from: "medium" }),
  filter("tenant", "Tenant", { from: "wide" }),
  { key: "labels", title: "Labels", from: "widest", cell: (row) => html`<${Labels} labels=${row.labels} />` },
  { ...number("attempts", "Attempts", { from: "medium" }), cell: attemptsText },
  time("created_at", "Created", { from: "medium" }),
  filter("worker", "Worker", { from: "wide", help: "Worker that leased it last" }),
  {
    ...number("duration_ms", "Ran for", { from: "wide", help: "Duration of the last attempt" }),
    cell: (row) => duration(seconds(row.duration_ms)),
  },
  number("priority", "Priority"),
  filter("key", "Key"),
  filter("group", "Group"),
  filter("reason", "Reason", { help: "Why it died" }),
  filter("fingerprint", "Fingerprint"),
  time("due_at", "Due"),
  time("expires_at", "Expires"),
  time("leased_at", "Leased"),
  time("deadline_at", "Lease ends"),
  time("finished_at", "Finished"),
  number("crashes", "Crashes"),
  number("redrives", "Redrives"),
  text("origin", "Origin", { help: "Queue in which a dead letter died" }),
];
const DEFAULT = COLUMNS.filter(({ key, from }) => from || ["id", "state"].includes(key)).map(({ key }) => key);

// The chosen columns. All that were chosen by hand are shown, however narrow the screen is.
export function useColumns() {
  const [chosen, choose] = usePref("jobs-columns", null);
  const isOwn = Array.isArray(chosen);
  const columns = useMemo(() => {
    if (!isOwn) return COLUMNS.filter(({ key }) => DEFAULT.includes(key));
    const wanted = COLUMNS.filter(({ key }) => key === "id" || chosen.includes(key));
    return wanted.map((column) => ({ ...column, from: undefined }));
  }, [chosen]);
  return { columns, isOwn, choose };
}

export function ColumnsMenu({ columns, isOwn, choose }) {
  const shown = columns.map(({ key }) => key);
  const toggle = (key) => choose(shown.includes(key) ? shown.filter((each) => each !== key) : [...shown, key]);
  return html`<${Menu} label="Columns" end>
    ${() => html`<fieldset class="menu-fields">
        <legend class="sr-only">Columns</legend>
        ${COLUMNS.slice(1).map(
          ({ key, title }) => html`<label class="check" key=${key}>
            <input type="checkbox" checked=${shown.includes(key)} onChange=${() => toggle(key)} />${title}
          </label>`,
        )}
      </fieldset>
      ${isOwn && html`<button class="link" onClick=${() => choose(null)}>As at first</button>`}`}
  </${Menu}>`;
}
