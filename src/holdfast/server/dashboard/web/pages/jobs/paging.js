// The way through the pages of jobs, and through a search for a text.
import { count, plural } from "../../lib/format.js";
import { html, useEffect, useState } from "../../lib/html.js";
import { useKey } from "../../lib/keyboard.js";
import { changeQuery } from "../../lib/router.js";
import { Failure } from "../../parts/states.js";
import { Key, Text, Time } from "../../parts/text.js";

// Pages are keyset pages: the cursor of the next one comes with each. The cursors of the pages
// before are kept while the filter stays.
export function Paging({ list, query, filterKey }) {
  const [before, setBefore] = useState([]);
  useEffect(() => setBefore([]), [filterKey]);
  const { after: here = "" } = query;
  const isSearch = list.search !== null;
  const canNext = !isSearch && list.after !== null && !list.loading;
  const canBack = !isSearch && here !== "";
  const next = () => {
    setBefore([...before, here]);
    changeQuery({ after: list.after }, { replace: false });
    scrollTo(0, 0);
  };
  const back = () => {
    changeQuery({ after: before.at(-1) ?? "" }, { replace: false });
    setBefore(before.slice(0, -1));
  };
  useKey("n", "Older jobs", next, { enabled: canNext });
  useKey("p", "Newer jobs", back, { enabled: canBack });
  const known = before.length > 0 || here === "";
  return html`<div class="paging">
    ${list.waiting &&
    html`<button class="button news" onClick=${list.showWaiting}>The list has changed: show it</button>`}
    ${(canNext || canBack) &&
    html`<nav class="toolbar" aria-label="Pages of jobs">
      ${known && html`<span class="hint">Page ${count(before.length + 1)}</span>`}
      <button
        class="button"
        disabled=${!canBack}
        onClick=${back}
      >${known ? "Newer" : "Newest"} <${Key} name="p" /></button>
      <button class="button" disabled=${!canNext} onClick=${next}>Older <${Key} name="n" /></button>
    </nav>`}
  </div>`;
}

// How far a search for a text got: it examines a bounded number of jobs each time.
export function SearchProgress({ search, found, more, text }) {
  const { examined, to, running, error, resume, stop } = search;
  if (examined === null) return null;
  return html`<div class="search-progress">
    <p role="status">
      <strong>${plural(found, "job")}</strong> with “<${Text} value=${text} max=${60} />” among ${more ? "the newest " : "all "}
      ${plural(examined, "job")}${more && to && html`, created since <${Time} value=${to} />`}.
      ${!more && " The search is complete."}
    </p>
    ${more && !running && html`<button class="button" onClick=${resume}>Search older jobs</button>`}
    ${running && html`<span class="hint">Searching…</span><button class="button" onClick=${stop}>Stop</button>`}
    ${error && html`<${Failure} error=${error} retry=${resume} />`}
  </div>`;
}
