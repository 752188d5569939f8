// Lists that have no live topic: read again every few seconds while the page is visible.
import { get } from "../lib/api.js";
import { now, useNow } from "../lib/clock.js";
import { createContext, html, useContext, useRef } from "../lib/html.js";
import { stringifyJson } from "../lib/json.js";
import { useResource } from "../lib/resource.js";
import { Age } from "./freshness.js";
import { Icon } from "./icon.js";
import { Failure, Loading } from "./states.js";

const EVERY_MS = 2_000;
const STALE_MS = 15_000;

// Rows that did not change stay the same objects, so that the table does not render them again.
export function keepRows(before, rows, keyOf) {
  const known = new Map(before.map((row) => [keyOf(row), row]));
  return rows.map((row) => {
    const old = known.get(keyOf(row));
    return old && stringifyJson(old) === stringifyJson(row) ? old : row;
  });
}

// The list `field` in the answer of GET `path`: {rows, at, answer, error, reload}. `rows` is null
// until the first answer; it stays when a later one fails, and `at` says how old it is.
export function useList(path, field, keyOf, { query = {}, every = EVERY_MS } = {}) {
  const kept = useRef([]);
  const load = async (signal) => {
    const answer = await get(path, query, { signal });
    kept.current = keepRows(kept.current, answer[field], keyOf);
    return { rows: kept.current, at: now(), answer };
  };
  const { data, error, reload } = useResource(load, [path, stringifyJson(query)], { every });
  return { rows: null, at: null, answer: null, ...data, error, reload };
}

// How old the list is, in the head of its page.
export function AsOf({ list: { at, error } }) {
  const age = useNow() - at;
  if (at === null) return null;
  return html`<${Age} age=${Math.max(0, age)} stale=${error !== null || age > STALE_MS} />`;
}

const Reload = createContext(() => {});

// Reads the list again, for acts that changed it.
export const useReload = () => useContext(Reload);

// The children once the list was read, else loading or why not; above them a notice if they may be
// out of date.
export function ListBody({ list, what, children }) {
  const { rows, error, reload } = list;
  if (rows === null) {
    return error ? html`<${Failure} error=${error} retry=${reload} />` : html`<${Loading} what=${what} />`;
  }
  return html`<${Reload.Provider} value=${reload}>
    ${error &&
    html`<div class="notice notice-warn" role="status">
      <${Icon} name="warn" />
      <div class="notice-text">
        <strong>The list below may be out of date.</strong>
        <p>${error.message}</p>
      </div>
      <button class="button" onClick=${reload}>Try again</button>
    </div>`}
    ${children}
  </${Reload.Provider}>`;
}
