// Dead letters: why they died, by cause, and how to put them back.
import { get } from "../lib/api.js";
import { count } from "../lib/format.js";
import { html, useEffect, useMemo, useRef, useState } from "../lib/html.js";
import { useKey } from "../lib/keyboard.js";
import { useLive } from "../lib/live.js";
import { useResource } from "../lib/resource.js";
import { changeQuery, go, useTitle } from "../lib/router.js";
import { useMay } from "../lib/session.js";
import { Chips } from "../parts/chips.js";
import { withQueue } from "../parts/choose_queue.js";
import { PageHead } from "../parts/shell.js";
import { Empty, Failure, Loading } from "../parts/states.js";
import { Tabs } from "../parts/tabs.js";
import { Download } from "./dead/download.js";
import { chipsOf, isEmpty, parseChip, readFilter, suggestFor, wordsOf } from "./dead/filter.js";
import { GroupDetails } from "./dead/group.js";
import { Groups } from "./dead/groups.js";
import { purge } from "./dead/purge.js";
import { PutBack } from "./dead/put_back.js";
import { Quarantine } from "./dead/quarantine.js";
import { CurrentRedrives, Redrives, isRunning, useRedrives } from "./dead/redrives.js";

const GROUPS_MAX = 100;
const RELOAD_MS = 500;
const SHARE = 10;

// The groups, read again soon after the number of dead letters changed, also while more die. Reading
// takes a tenth of the time at most.
function useGroups(filter) {
  const key = JSON.stringify(filter);
  const took = useRef(0);
  const timer = useRef(null);
  const load = async (signal) => {
    const begun = performance.now();
    const answer = await get("v1/dead/groups", { ...filter, limit: GROUPS_MAX }, { signal });
    took.current = performance.now() - begun;
    return answer;
  };
  const found = useResource(load, [key]);
  const { data } = useLive("overview");
  const dead = data ? `${data.totals?.dead}` : null;
  const before = useRef(null);
  useEffect(() => {
    const known = before.current;
    before.current = dead;
    if (known === null || known === dead) return;
    const reload = () => {
      timer.current = null;
      found.reload();
    };
    timer.current ??= setTimeout(reload, Math.max(RELOAD_MS, SHARE * took.current));
  }, [dead]);
  useEffect(() => () => clearTimeout(timer.current), []);
  return found;
}

const VIEWS = ["groups", "quarantine", "redrives"];

export default withQueue(DeadPage, "Dead letters", "/dead");

function DeadPage({ query }) {
  const field = useRef(null);
  const may = useMay();
  const filter = readFilter(query);
  const groups = useGroups(filter);
  const redrives = useRedrives();
  const [wanted, setWanted] = useState(null); // what to put back
  const [acted, setActed] = useState(0);
  const view = VIEWS.includes(query.view) ? query.view : "groups";
  const known = groups.data?.groups;
  const suggest = useMemo(() => suggestFor(known ?? []), [known]);
  useTitle("Dead letters");
  useKey("/", "Filter the dead letters", () => field.current.focus());
  const running = redrives.filter(isRunning);
  const tabs = [
    ["groups", html`Causes ${known && html`<span class="tab-count">${count(known.length)}</span>`}`],
    ["quarantine", "Quarantine"],
    ["redrives", html`Redrives ${running.length > 0 && html`<span class="tab-count">${running.length} running</span>`}`],
  ];
  const done = () => {
    setActed((before) => before + 1);
    groups.reload();
  };
  const acts = may.act("operate")
    ? { putBack: (some, count, more = {}) => setWanted({ filter: some, count, ...more }), purge: (some) => purge(some, done), acted }
    : null;
  return html`<${PageHead} title="Dead letters">
      ${groups.data?.total > 0 && html`<${Download} filter=${filter} />`}
    </${PageHead}>
    ${view !== "redrives" && html`<${CurrentRedrives} redrives=${redrives} />`}
    <${Chips}
      label="Filter the dead letters"
      inputRef=${field}
      filters=${chipsOf(filter)}
      placeholder=${isEmpty(filter) ? "Filter: queue:mail, tenant:acme, since:24h, or a text" : ""}
      suggest=${suggest}
      onAdd=${(text) => add(query, parseChip(text))}
      onRemove=${(name, value) => remove(query, name, value)}
    />
    <${Tabs} label="Dead letters" tabs=${tabs} chosen=${view} onChoose=${(key) => changeQuery({ view: key === "groups" ? "" : key })}>
      ${view === "groups" && html`<${Causes} found=${groups} filter=${filter} query=${query} acts=${acts} />`}
      ${view === "quarantine" && html`<${Quarantine} filter=${filter} stamp=${groups.data} acts=${acts} />`}
      ${view === "redrives" && html`<${Redrives} redrives=${redrives} />`}
    </${Tabs}>
    ${wanted &&
    html`<${PutBack}
      ...${wanted}
      onClose=${() => setWanted(null)}
      onDone=${() => {
        setWanted(null);
        done();
      }}
    />`}`;
}

// Labels may be several; any other filter has one value.
function add(query, change) {
  if (!change.label) return changeQuery(change, { replace: false });
  return changeQuery({ label: [...new Set([query.label ?? [], change.label].flat())] }, { replace: false });
}

function remove(query, name, value) {
  const left = name === "label" ? [query.label].flat().filter((each) => each !== value) : "";
  changeQuery({ [name]: left }, { replace: false });
}

function Causes({ found, filter, query, acts }) {
  const { data, error, reload } = found;
  if (error && !data) return html`<${Failure} error=${error} retry=${reload} />`;
  if (!data) return html`<${Loading} what="dead letters" />`;
  const { groups, total, hidden, estimated } = data;
  if (groups.length === 0) return html`<${Nothing} filter=${filter} />`;
  if (groups.length === 1 && (filter.fingerprint || total === 1)) {
    return html`<${GroupDetails} group=${groups[0]} bucketMs=${data.bucket_ms} filter=${filter} query=${query} acts=${acts} />`;
  }
  return html`<section class="panel" aria-labelledby="causes-title">
    <div class="panel-head">
      <h2 id="causes-title">
        ${count(total, estimated)} dead ${total === 1 ? "letter" : "letters"}
        <span class="hint"> by cause${hidden > 0 ? `; ${count(hidden, estimated)} with rarer causes are not listed` : ""}</span>
      </h2>
      ${acts &&
      html`<div class="actions">
        <button class="button" onClick=${() => acts.putBack(filter, total)}>Put all back…</button>
        <button class="button button-quiet" onClick=${() => acts.purge(filter)}>Delete all…</button>
      </div>`}
    </div>
    <${Groups} groups=${groups} bucketMs=${data.bucket_ms} filter=${filter} query=${query} acts=${acts} />
  </section>`;
}

function Nothing({ filter }) {
  if (!isEmpty(filter)) {
    return html`<div class="panel"><h2 class="sr-only">Causes</h2><${Empty} title=${`No dead letters ${wordsOf(filter)}`}>
      <span class="empty-act"><button class="button" onClick=${() => go("/dead")}>Show all dead letters</button></span>
    </${Empty}></div>`;
  }
  return html`<div class="panel"><h2 class="sr-only">Causes</h2><${Empty} title="No dead letters">
    A job ends here when its attempts are used up, when it expires, or when it crashes its worker. It is kept with
    its payload and its errors, so that it can be looked at, edited and put back.
  </${Empty}></div>`;
}
