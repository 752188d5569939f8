// The page of jobs that is shown. It is read again every few seconds, and does not jump under the
// reader: while rows are chosen or pointed at, known rows change in place, and new ones wait.
import { get } from "../../lib/api.js";
import { useCallback, useEffect, useRef, useState } from "../../lib/html.js";
import { stringifyJson } from "../../lib/json.js";
import { useResource } from "../../lib/resource.js";

export const PAGE = 50;
const EVERY_MS = [2_000, 5_000, 10_000, 30_000, 60_000];

// Runs `load(signal)` at first, when `key` changes, and again after `least` milliseconds. If it takes
// long it is run less often: it takes one of `share` milliseconds at most.
export function useRefreshed(load, key, { enabled = true, least = EVERY_MS[0], share = 10 } = {}) {
  const intervalFor = (took) =>
    EVERY_MS.find((every) => every >= least && every >= took * share) ?? EVERY_MS.at(-1);
  const [every, setEvery] = useState(least);
  return useResource(
    async (signal) => {
      const begun = performance.now();
      const answer = await load(signal);
      setEvery(intervalFor(performance.now() - begun));
      return { key, answer };
    },
    [key],
    { every: enabled ? every : 0 },
  );
}

// The fresh rows, where equal ones are the same objects as before: they are not rendered again.
function reused(before, rows) {
  const known = new Map(before.map((row) => [row.id, row]));
  return rows.map((row) => {
    const old = known.get(row.id);
    return old && stringifyJson(old) === stringifyJson(row) ? old : row;
  });
}

// The shown rows with the fresh values, in the same places, and whether others would be shown now.
// A row that is missing is `gone`, unless newer ones have moved it to the next page.
function held(before, fresh, isLast) {
  const known = new Map(fresh.map((row) => [row.id, row]));
  const oldest = isLast ? "" : (fresh.at(-1)?.created_at ?? "");
  const missing = (row) => (row.gone || row.created_at < oldest ? row : { ...row, gone: true });
  const rows = before.map((row) => known.get(row.id) ?? missing(row));
  return { rows, waiting: fresh.length !== before.length || fresh.some((row, i) => row.id !== before[i].id) };
}

const NOTHING = { key: null, rows: [], after: null, waiting: false, examined: null, examinedTo: null };

const pageOf = (key, { rows, after, examined, examined_to: examinedTo }) => ({
  key,
  rows,
  after,
  waiting: false,
  examined: examined ?? null,
  examinedTo: examinedTo ?? null,
});

// {rows, after, waiting, loading, error, reload, showWaiting, search}. `busy()` says whether the
// reader works with the rows. `search` is for a text: {examined, to, running, resume, stop}.
export function useJobList(query, busy) {
  const key = stringifyJson(query);
  const isSearch = Boolean(query.contains);
  const ask = (after, signal) =>
    get("v1/jobs", { ...query, view: "row", limit: PAGE, ...(after && { after }) }, { signal });
  const { data, error, reload } = useRefreshed((signal) => ask(null, signal), key, { enabled: !isSearch });
  const [shown, setShown] = useState(NOTHING);
  const forced = useRef(false); // after an act of the reader the list may jump
  const latest = useRef(data);
  latest.current = data;

  useEffect(() => {
    if (data === null || data.key !== key) return;
    setShown((before) => {
      if (before.key !== key || isSearch) return pageOf(key, data.answer);
      const fresh = reused(before.rows, data.answer.rows);
      if (forced.current || !busy()) return { ...pageOf(key, data.answer), rows: fresh };
      return { ...before, ...held(before.rows, fresh, data.answer.after === null) };
    });
    forced.current = false;
  }, [data]);
  const showWaiting = () => {
    const { answer } = latest.current ?? {};
    if (answer) setShown((before) => ({ ...pageOf(key, answer), rows: reused(before.rows, answer.rows) }));
  };
  return {
    ...shown,
    loading: shown.key !== key,
    error: error ?? null,
    reload: () => {
      forced.current = true;
      reload();
    },
    showWaiting,
    search: useSearch(shown, setShown, ask, key, isSearch),
  };
}

// Goes on with the search for a text where the last answer ended, until a page is found.
function useSearch(shown, setShown, ask, key, enabled) {
  const running = useRef(null);
  const [state, setState] = useState({ running: false, error: null });
  const stop = useCallback(() => {
    running.current?.abort();
    running.current = null;
    setState({ running: false, error: null });
  }, []);
  useEffect(() => stop, [key]);
  const resume = async () => {
    const mine = (running.current = new AbortController());
    setState({ running: true, error: null });
    let { after } = shown;
    let found = 0;
    try {
      while (after !== null && found < PAGE && running.current === mine) {
        const page = await ask(after, mine.signal);
        after = page.after;
        found += page.rows.length;
        if (running.current !== mine) return;
        setShown((before) => ({
          ...before,
          rows: [...before.rows, ...page.rows],
          after: page.after,
          examined: before.examined + page.examined,
          examinedTo: page.examined_to ?? before.examinedTo,
        }));
      }
      if (running.current === mine) stop();
    } catch (error) {
      if (running.current === mine) setState({ running: false, error });
    }
  };
  if (!enabled) return null;
  return { examined: shown.examined, to: shown.examinedTo, ...state, resume, stop };
}
