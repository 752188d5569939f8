// The jobs of a schedule's past ticks, as a strip of small bars.
import { get, v1 } from "../../lib/api.js";
import { UNKNOWN, count, duration, localTime, utcTime } from "../../lib/format.js";
import { html, useEffect } from "../../lib/html.js";
import { usePref } from "../../lib/prefs.js";
import { useResource } from "../../lib/resource.js";

const AT_ONCE = 4;
const SHOWN = 20;
const EVERY_MS = 4_000;

let busy = 0;
const waiting = [];

// At most four strips are read at a time, however long the list is.
async function inTurn(load) {
  if (busy >= AT_ONCE) await new Promise((resolve) => waiting.push(resolve));
  busy += 1;
  try {
    return await load();
  } finally {
    busy -= 1;
    waiting.shift()?.();
  }
}

const isEnded = ({ state }) => state !== "waiting" && state !== "leased";

// The past runs, newest first, read again after a tick and while one of them has not ended.
export function useRuns({ name, last_tick: lastTick, paused }, shown = SHOWN) {
  const found = useResource(
    async (signal) => {
      const load = () => get(v1`schedules/${name}/runs`, { count: shown }, { signal });
      return (await inTurn(load)).runs;
    },
    [name, shown],
  );
  const { data, error, reload } = found;
  useEffect(() => {
    if (data) reload();
  }, [lastTick, paused]);
  const open = error !== null || data?.some((run) => !isEnded(run));
  useEffect(() => {
    const timer = open && setInterval(() => document.hidden || reload(), EVERY_MS);
    return () => clearInterval(timer);
  }, [open]);
  return found;
}

// "done in 3 s", or why there is nothing to say.
export function runText({ state, duration_ms: ms, attempts }) {
  if (state === null) return "no job: missed, refused or deleted since";
  const took = ms === null || ms === undefined ? "" : ` in ${duration(ms / 1000)}`;
  return `${state}${took}${attempts > 1 ? `, attempt ${count(attempts)}` : ""}`;
}

function summaryOf(runs) {
  const counts = Map.groupBy(runs, ({ state }) => state ?? "without a job");
  const parts = [...counts].map(([state, some]) => `${count(some.length)} ${state}`);
  return `Last ${count(runs.length)} ticks: ${parts.join(", ")}`;
}

// The strip of a schedule in a list.
export function RunStrip({ schedule }) {
  const { data: runs, error } = useRuns(schedule);
  if (!runs) return html`<span class="unknown" title=${error?.message}>${error ? UNKNOWN : "…"}</span>`;
  if (runs.length === 0) return html`<span class="zero">none yet</span>`;
  return html`<${Strip} runs=${runs} />`;
}

export function Strip({ runs }) {
  const [preference] = usePref("time");
  const time = preference === "utc" ? utcTime : localTime;
  return html`<span class="strip" role="img" aria-label=${summaryOf(runs)}>
    ${runs
      .toReversed()
      .map((run) => html`<span key=${run.id} class=${`run run-${run.state ?? "none"}`} title=${`${time(run.tick)} · ${runText(run)}`} />`)}
  </span>`;
}

const MEANINGS = [
  ["done", "done"],
  ["dead", "dead"],
  ["leased", "running"],
  ["waiting", "waiting"],
  ["none", "no job"],
];

export const Legend = () => html`<ul class="legend">
  ${MEANINGS.map(([state, text]) => html`<li key=${state}><span class=${`run run-key run-${state}`} />${text}</li>`)}
</ul>`;
