// Jobs: filters in the address, pages of rows, and acts on some or all of them.
import { get, withQuery } from "../lib/api.js";
import { count, sentence } from "../lib/format.js";
import { html, useEffect, useMemo, useRef, useState } from "../lib/html.js";
import { stringifyJson } from "../lib/json.js";
import { useKey } from "../lib/keyboard.js";
import { changeQuery, go, useTitle } from "../lib/router.js";
import { useMay } from "../lib/session.js";
import { withQueue } from "../parts/choose_queue.js";
import { CopyCall } from "../parts/copy.js";
import { Menu, MenuItem } from "../parts/menu.js";
import { PageHead } from "../parts/shell.js";
import { Empty, Failure, Loading } from "../parts/states.js";
import { Table } from "../parts/table.js";
import { ACTS, ActDialog } from "./jobs/act.js";
import { Acts } from "./jobs/acts.js";
import { ColumnsMenu, useColumns } from "./jobs/columns.js";
import { FilterField } from "./jobs/completion.js";
import { STATES, added, asCommand, filtersOf, inWords, queryOf } from "./jobs/filter.js";
import { useJobList, useRefreshed } from "./jobs/list.js";
import { Paging, SearchProgress } from "./jobs/paging.js";
import { SavedFilters } from "./jobs/saved.js";

const CHOSEN_MAX = 1_000;

export default withQueue(Jobs, "Jobs", "/jobs");

function Jobs({ query }) {
  useTitle("Jobs");
  const filters = useMemo(() => filtersOf(query), [stringifyJson(query)]);
  const wanted = queryOf(filters);
  const filterKey = stringifyJson(wanted);
  const frame = useRef(null);
  const [chosen, setChosen] = useState(new Set());
  useEffect(() => setChosen(new Set()), [filterKey]);
  const busy = () =>
    chosen.size > 0 || frame.current?.matches(":hover, :focus-within") || scrollY > 200;
  const list = useJobList({ ...wanted, ...(query.after && { after: query.after }) }, busy);
  const [asked, setAsked] = useState(null); // the act whose dialog is open
  const [started, setStarted] = useState({});
  const [ended, setEnded] = useState(0);
  const may = useMay();
  const apply = (next) => go("/jobs", queryOf(next));
  const field = useRef(null);
  useKey("/", "Filter the jobs", () => field.current.focus());
  const tabbed = wanted.state?.length === 1 && STATES.includes(wanted.state[0]);
  const chips = useMemo(() => filters.filter(([name]) => !(tabbed && name === "state")), [filters]);
  const ask = (act, target, says) => setAsked({ act, target, says });

  return html`<${PageHead} title="Jobs">
      <span class="from-medium"><${CopyCall}
        method="GET"
        path=${withQuery("v1/jobs", { ...wanted, view: "row" })}
        command=${asCommand(filters)}
      /></span>
    </${PageHead}>
    <${Acts}
      started=${started}
      onProgress=${(acts) => {
        list.reload();
        setEnded(acts);
      }}
    />
    <section class="panel jobs" aria-labelledby="jobs-title">
      <h2 id="jobs-title" class="sr-only">Jobs that match</h2>
      <${StateTabs} wanted=${wanted} ended=${ended} chosen=${tabbed ? wanted.state[0] : wanted.state ? null : ""} />
      <div class="jobs-tools">
        <${FilterField}
          filters=${chips}
          rows=${list.rows}
          inputRef=${field}
          onAdd=${(filter) => apply(added(filters, filter))}
          onRemove=${(name, value) => apply(filters.filter((each) => each[0] !== name || each[1] !== value))}
        />
        <div class="toolbar">
          <${SavedFilters} filters=${filters} />
          <${ColumnsMenu} ...${useColumns()} />
          ${may.act("operate") &&
          html`<${ActMenu} onAct=${(act) => ask(act, { filter: wanted }, filters.length ? "what matches" : "all jobs")} />`}
        </div>
      </div>
      ${list.search && html`<${SearchProgress}
        search=${list.search}
        found=${list.rows.length}
        more=${list.after !== null}
        text=${wanted.contains}
      />`}
      ${list.error && html`<${Failure} error=${list.error} retry=${list.reload} />`}
      ${list.loading && !list.error && list.key === null && html`<${Loading} what="jobs" />`}
      <div
        ref=${frame}
        class=${list.loading && !list.error ? "jobs-frame jobs-loading" : "jobs-frame"}
        aria-busy=${list.loading ? "true" : undefined}
      >
        ${list.key !== null && !(list.loading && list.error) && html`<${Rows}
          list=${list}
          filters=${filters}
          chosen=${chosen}
          setChosen=${setChosen}
        />`}
      </div>
      <${Paging} list=${list} query=${query} filterKey=${filterKey} />
    </section>
    ${chosen.size > 0 && may.act("operate") && html`<${ChosenBar}
      chosen=${chosen}
      setChosen=${setChosen}
      onAct=${ask}
    />`}
    ${asked &&
    html`<${ActDialog}
      ...${asked}
      onClose=${() => setAsked(null)}
      onRun=${(act) => {
        setStarted((before) => ({ ...before, [act.id]: act }));
        setChosen(new Set());
      }}
    />`}`;
}

function Rows({ list, filters, chosen, setChosen }) {
  const { columns, isOwn } = useColumns();
  const may = useMay();
  const selection = {
    chosen,
    // Rows of other pages stay chosen.
    onChange: (next) => {
      const here = new Set(list.rows.map(({ id }) => id));
      const elsewhere = [...chosen].filter((id) => !here.has(id));
      setChosen(new Set([...elsewhere, ...next].slice(0, CHOSEN_MAX)));
    },
  };
  return html`<${Table}
    key=${columns.map(({ key }) => key).join()}
    caption="Jobs, newest first"
    columns=${columns}
    rows=${list.rows}
    keyOf=${(row) => row.id}
    selection=${may.act("operate") ? selection : undefined}
    scrolls=${isOwn}
    empty=${list.loading ? html`<${Loading} what="jobs" />` : html`<${NoJobs} filters=${filters} list=${list} />`}
  />`;
}

function NoJobs({ filters, list }) {
  if (filters.length === 0) {
    return html`<${Empty} title="No jobs yet" command="holdfast enqueue --wait -- echo hello">
      Every job that is enqueued appears here at once, newest first. Enqueue one:
    </${Empty}>`;
  }
  if (list.search && list.after !== null) return html`<${Empty} title="Nothing found so far" />`;
  return html`<${Empty} title="No job matches">
    Jobs must match all filters: ${inWords(filters).slice(0, 200)}.${" "}
    <button class="link" onClick=${() => go("/jobs", {})}>Show all jobs</button>
  </${Empty}>`;
}

// The stored states with the number of jobs that match the other filters. They are counted again when
// another act has `ended`.
function StateTabs({ wanted, ended, chosen }) {
  const { state: _, contains, ...others } = wanted;
  const { data, reload } = useRefreshed(
    (signal) => get("v1/tally", { ...others, by: "state" }, { signal }),
    stringifyJson(others),
    { least: 5_000, share: 100, enabled: !contains },
  );
  useEffect(() => {
    if (ended > 0) reload();
  }, [ended]);
  const counts = Object.fromEntries((data?.answer.tallies ?? []).map(({ value, count: jobs }) => [value, jobs]));
  // A text is not counted, and neither is what was not loaded: then no number is shown.
  const known = data !== null && !contains;
  const all = Object.values(counts).reduce((sum, jobs) => sum + Number(jobs), 0);
  const more = data?.answer.more ? "+" : "";
  const tab = (key, title, jobs) => html`<button
    key=${key}
    aria-pressed=${key === chosen ? "true" : "false"}
    onClick=${() => changeQuery({ state: key, after: "" }, { replace: false })}
  >${key && html`<span class=${`dot dot-${key}`} />`}${title}${known && html`<span class="tab-count">${count(jobs)}${more}</span>`}</button>`;
  return html`<div class="state-tabs" role="group" aria-label="State">
    ${tab("", "All", all)}${STATES.map((state) => tab(state, sentence(state), counts[state] ?? 0))}
  </div>`;
}

function ActMenu({ onAct }) {
  return html`<${Menu} label="Act on all" end>
    ${(close) => Object.entries(ACTS).map(
      ([act, { title, danger }]) => html`<${MenuItem}
        key=${act}
        danger=${danger}
        onClick=${() => {
          close();
          onAct(act);
        }}
      >${title}…</${MenuItem}>`,
    )}
  </${Menu}>`;
}

function ChosenBar({ chosen, setChosen, onAct }) {
  const says = chosen.size === 1 ? "the selected job" : `${count(chosen.size)} selected jobs`;
  return html`<div class="chosen-bar" role="region" aria-label="Selected jobs">
    <strong>${count(chosen.size)} selected</strong>
    <div class="actions">
      ${Object.entries(ACTS).map(
        ([act, { title, danger }]) => html`<button
          key=${act}
          class=${danger ? "button text-danger" : "button"}
          onClick=${() => onAct(act, { ids: [...chosen] }, says)}
        >${title}…</button>`,
      )}
      <button class="button button-quiet" onClick=${() => setChosen(new Set())}>Clear</button>
    </div>
  </div>`;
}
