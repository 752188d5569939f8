// Audit: who did what, when, and how it ended. The newest entries flow in.
import { get } from "../lib/api.js";
import { instant } from "../lib/clock.js";
import { count, plural, utcTime } from "../lib/format.js";
import { html, useEffect, useMemo, useRef, useState } from "../lib/html.js";
import { useKey } from "../lib/keyboard.js";
import { useAction } from "../lib/resource.js";
import { changeQuery } from "../lib/router.js";
import { Icon } from "../parts/icon.js";
import { AsOf, ListBody, useList } from "../parts/listing.js";
import { PageHead } from "../parts/shell.js";
import { Empty } from "../parts/states.js";
import { Field } from "../parts/form.js";
import { Table } from "../parts/table.js";
import { Text, Time } from "../parts/text.js";
import { matches, oldestOf, searchOlder } from "./audit/search.js";

const NEWEST = 100;
const TYPING_MS = 400;

function Outcome({ row }) {
  if (row.outcome === null) return html`<span class="badge" title="The server ended before it could note the outcome">unknown</span>`;
  if (row.outcome === "done") return html`<span class="state state-done">done</span>`;
  return html`<span class="badge badge-critical"><${Text} value=${row.outcome} max=${40} /></span>`;
}

const COLUMNS = [
  { key: "at", title: "When", sort: (row) => instant(row.at), cell: (row) => html`<span class="nowrap"><${Time} value=${row.at} /></span>` },
  {
    key: "who",
    title: "Who",
    sort: (row) => row.who,
    cell: (row) => html`<strong><${Text} value=${row.who || "local user"} max=${60} /></strong>
      ${row.peer && html`<span class="hint from-wide"> from <${Text} value=${row.peer} max=${60} /></span>`}`,
  },
  {
    key: "what",
    title: "Did what",
    sort: (row) => row.what,
    cell: (row) => html`<code><${Text} value=${row.what} max=${60} /></code>
      <span class="narrow hint"><${Text} value=${row.on} max=${80} /></span>`,
  },
  { key: "on", title: "On what", from: "wide", cell: (row) => html`<${Text} value=${row.on} max=${140} />` },
  { key: "changed", title: "Changed", number: true, from: "medium", sort: (row) => row.changed, cell: (row) => (row.changed === null ? "" : count(row.changed)) },
  { key: "outcome", title: "Outcome", from: "medium", sort: (row) => row.outcome, cell: (row) => html`<${Outcome} row=${row} />` },
];

const keyOf = (row) => [row.at, row.token, row.what, row.on].join(" ");

// Entries have no id of their own: the same act twice in a millisecond gets a number. A row stays
// the same object, so that the table does not render it again.
function useKeyed(rows) {
  const kept = useRef(new Map());
  return useMemo(() => {
    const found = new Map();
    for (const row of rows) {
      let key = keyOf(row);
      for (let times = 2; found.has(key); times += 1) key = `${keyOf(row)} ${times}`;
      const old = kept.current.get(key);
      found.set(key, old?.row === row ? old : { row, entry: { ...row, key } });
    }
    kept.current = found;
    return [...found.values()].map(({ entry }) => entry);
  }, [rows]);
}

export default function Audit({ query }) {
  const [older, setOlder] = useState(null);
  // While older entries are shown, none is added above them.
  const list = useList("v1/audit", "acts", keyOf, { query: { limit: NEWEST }, every: older ? 0 : undefined });
  const filter = { q: query.q ?? "", what: query.what ?? "", outcome: query.outcome ?? "" };
  const entries = useKeyed(useMemo(() => [...(list.rows ?? []), ...(older?.acts ?? [])], [list.rows, older]));
  const found = useMemo(() => entries.filter((row) => matches(row, filter)), [entries, filter.q, filter.what, filter.outcome]);
  const after = older ? older.after : (list.answer?.after ?? null);
  const searching = useAction(async () => {
    const next = await searchOlder(get, after, filter);
    setOlder((before) => ({ acts: [...(before?.acts ?? []), ...next.acts], after: next.after }));
  });
  // A filter that matches none of the loaded entries looks further back once by itself.
  const lacks = list.rows !== null && found.length === 0 && after !== null && Boolean(filter.q || filter.what || filter.outcome);
  useEffect(() => {
    const timer = lacks && setTimeout(() => searching.run(), TYPING_MS);
    return () => clearTimeout(timer);
  }, [lacks, filter.q, filter.what, filter.outcome]);
  return html`<${PageHead} title="Audit">
      ${older === null ? html`<${AsOf} list=${list} />` : html`<button class="button" onClick=${() => setOlder(null)}>Back to the newest</button>`}
    </${PageHead}>
    <${ListBody} list=${list} what="audit log">
      <section class="panel" aria-label="Audit log">
        <${Filters} filter=${filter} entries=${entries} />
        <${Table}
          caption="Acts of operators, newest first"
          columns=${COLUMNS}
          rows=${found}
          keyOf=${(row) => row.key}
          order=${["at", "desc"]}
          empty=${html`<${Nothing} filtered=${entries.length > 0} more=${after !== null} />`}
        />
        <div class="audit-foot">
          <span class="hint">
            ${found.length === entries.length ? plural(entries.length, "entry", "entries") : `${count(found.length)} of ${count(entries.length)} entries`}${
              entries.length > 0 ? `, back to ${utcTime(oldestOf(entries))}` : ""
            }
          </span>
          ${after !== null &&
          html`<button class="button" disabled=${searching.busy} onClick=${() => searching.run()}>
            ${searching.busy ? "Looking…" : "Look further back"}
          </button>`}
        </div>
      </section>
    </${ListBody}>`;
}

const OUTCOMES = [["", "any outcome"], ["done", "done"], ["failed", "failed"], ["unknown", "unknown"]];

function Filters({ filter, entries }) {
  const field = useRef(null);
  useKey("/", "Search the entries", () => field.current?.focus());
  const acts = useMemo(() => [...new Set(entries.map(({ what }) => what))].sort(), [entries]);
  const known = filter.what && !acts.includes(filter.what) ? [...acts, filter.what] : acts;
  return html`<div class="panel-head filters">
    <label class="search">
      <${Icon} name="search" /><span class="sr-only">Search the entries</span>
      <input type="search" ref=${field} value=${filter.q} placeholder="Who or what…" onInput=${(event) => changeQuery({ q: event.target.value })} /><kbd>/</kbd>
    </label>
    <${Field} label="Act" type="select" options=${[["", "any act"], ...known]} value=${filter.what} onInput=${(what) => changeQuery({ what })} />
    <${Field} label="Outcome" type="select" options=${OUTCOMES} value=${filter.outcome} onInput=${(outcome) => changeQuery({ outcome })} />
  </div>`;
}

function Nothing({ filtered, more }) {
  if (!filtered) {
    return html`<${Empty} title="Nothing was done over HTTP yet" command="holdfast audit">
      Each act of an operator is noted here with the token, the address and the outcome. Acts on the store
      itself, without a server, are not.
    </${Empty}>`;
  }
  return html`<${Empty} title="No entry matches">${more ? "Look further back, or change the filter." : "Change the filter."}</${Empty}>`;
}
