// Data that is asked for, and acts that change something.
import { useCallback, useEffect, useRef, useState } from "./html.js";
import { showError, showToast } from "./toasts.js";

// Loads with `load(signal)` whenever an entry of `on` changes, and every `every` milliseconds while
// the page is visible: {data, error, loading, reload}. The data stays while it is loaded again.
export function useResource(load, on, { every = 0 } = {}) {
  const [state, setState] = useState({ data: null, error: null, loading: true });
  const latest = useRef(load);
  latest.current = load;
  const running = useRef(null);

  const reload = useCallback(async () => {
    running.current?.abort();
    const mine = (running.current = new AbortController());
    setState((before) => ({ ...before, loading: true }));
    try {
      const data = await latest.current(mine.signal);
      if (running.current === mine) setState({ data, error: null, loading: false });
    } catch (error) {
      if (running.current !== mine || error.name === "AbortError") return;
      setState((before) => ({ ...before, error, loading: false }));
    } finally {
      if (running.current === mine) running.current = null;
    }
  }, []);

  useEffect(() => {
    setState({ data: null, error: null, loading: true });
    reload();
    return () => {
      running.current?.abort();
      running.current = null;
    };
  }, on);
  useEffect(() => {
    if (!every) return undefined;
    // A slow answer is waited for, not asked for again.
    const timer = setInterval(() => document.hidden || running.current || reload(), every);
    return () => clearInterval(timer);
  }, [every]);
  return { ...state, reload };
}

// An act of the user, once at a time: {run, busy, error}. `run` returns the answer, or undefined if
// it failed: then `error` is set, and a toast shows it unless `quiet`, for forms that show it
// themselves. `done` is the toast after success: a text, or a function of the answer.
export function useAction(act, { done, quiet = false } = {}) {
  const [state, setState] = useState({ busy: false, error: null });
  const busy = useRef(false);
  const run = async (...values) => {
    if (busy.current) return undefined;
    busy.current = true;
    setState({ busy: true, error: null });
    try {
      const answer = await act(...values);
      setState({ busy: false, error: null });
      const text = typeof done === "function" ? done(answer) : done;
      if (text) showToast(text);
      return answer === undefined ? null : answer;
    } catch (error) {
      setState({ busy: false, error });
      if (!quiet) showError(error);
      return undefined;
    } finally {
      busy.current = false;
    }
  };
  return { ...state, run };
}
