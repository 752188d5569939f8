// The causes of death as a table, largest first.
import { count, plural, sentence } from "../../lib/format.js";
import { html, useMemo } from "../../lib/html.js";
import { href } from "../../lib/router.js";
import { Table } from "../../parts/table.js";
import { Text, Time } from "../../parts/text.js";
import { REASONS } from "./filter.js";
import { Trend } from "./trend.js";

const TEXT_MAX = 300;

// The filter that selects one group, within the filter of the page; null if none does.
export function filterOf(group, filter) {
  if (group.fingerprint) return { ...filter, fingerprint: group.fingerprint };
  const reasons = Object.keys(group.reasons);
  return reasons.length === 1 ? { ...filter, reason: reasons[0] } : null;
}

// The most frequent names in one line: "mail, billing and 2 more".
export function namesText(counts, shown = 2) {
  const found = Object.keys(counts);
  const rest = found.length - shown;
  return found.slice(0, shown).map((name) => (name.length > 40 ? `${name.slice(0, 40)}…` : name)).join(", ") + (rest > 0 ? ` and ${count(rest)} more` : "");
}

// The first part of an error on one line.
export const oneLine = (text) => text.slice(0, TEXT_MAX).replace(/\s+/g, " ").trim();

function Cause({ group, filter, query }) {
  const wanted = filterOf(group, filter);
  const reasons = Object.keys(group.reasons).map((reason) => REASONS[reason] ?? reason);
  const title = group.type || sentence(reasons[0] ?? "unknown cause");
  return html`<div class="cause">
    ${wanted ? html`<a class="cause-type" href=${href("/dead", { ...query, ...wanted })}><${Text} value=${title} /></a>` : html`<span class="cause-type"><${Text} value=${title} /></span>`}
    <div class="cause-text"><${Text} value=${oneLine(group.text) || reasons.join(", ")} /></div>
    <div class="hint">
      <${Text} value=${namesText(group.queues)} /> · <${Text} value=${namesText(group.tasks)} />
      ${group.redriven > 0 && ` · ${plural(group.redriven, "letter")} put back before`}
      <span class="cause-seen"> · last seen <${Time} value=${group.last_at} /></span>
    </div>
  </div>`;
}

const columnsOf = ({ bucketMs, filter, query, acts }) => [
  {
    key: "cause",
    title: "Cause",
    sort: (row) => row.type,
    cell: (row) => html`<${Cause} group=${row} filter=${filter} query=${query} />`,
  },
  {
    key: "count",
    title: "Letters",
    number: true,
    sort: (row) => row.count,
    cell: (row) => html`<strong class="cause-count">${count(row.count)}</strong>`,
  },
  {
    key: "trend",
    title: "Trend",
    from: "wide",
    help: "Deaths over time, up to now",
    cell: (row) => html`<${Trend} values=${row.trend} bucketMs=${bucketMs} />`,
  },
  {
    key: "last",
    title: "Last seen",
    from: "medium",
    sort: (row) => row.last_at,
    cell: (row) => html`<${Time} value=${row.last_at} />`,
  },
  {
    key: "first",
    title: "First seen",
    from: "wide",
    sort: (row) => row.first_at,
    cell: (row) => html`${row.estimated && html`<span title="Only the newest were read: it may be earlier">before </span>`}<${Time} value=${row.first_at} />`,
  },
  ...(acts
    ? [{
        key: "acts",
        from: "medium",
        number: true,
        title: html`<span class="sr-only">Acts</span>`,
        cell: (row) => {
          const wanted = filterOf(row, filter);
          return wanted && html`<button class="button" aria-label=${`Put back ${row.count} letters: ${row.type}`} onClick=${() => acts.putBack(wanted, row.count)}>Put back…</button>`;
        },
      }]
    : []),
];

export function Groups({ groups, bucketMs, filter, query, acts }) {
  const columns = useMemo(
    () => columnsOf({ bucketMs, filter, query, acts }),
    [bucketMs, JSON.stringify(query), Boolean(acts)],
  );
  return html`<${Table}
    caption="Causes of death with the number of letters and when they were seen"
    columns=${columns}
    rows=${groups}
    keyOf=${(row) => row.fingerprint ?? ""}
    order=${["count", "desc"]}
  />`;
}
