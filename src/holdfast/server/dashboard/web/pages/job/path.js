// The path of a job through its states, read from its timeline: transitions, leases and gaps.
import { instant } from "../../lib/clock.js";

const ENDS = { completed: "done", retried: "waiting", released: "waiting", buried: "dead", forwarded: "dead", cancelled: "cancelled" };
const BY_LEASE = ["completed", "retried", "released"];

// Every transition as "waiting>leased", with how often it was taken: Map
export function transitions(events) {
  const taken = new Map();
  let state = "start";
  const go = (next) => {
    if (state === next) return;
    const edge = `${state}>${next}`;
    taken.set(edge, (taken.get(edge) ?? 0) + 1);
    state = next;
  };
  for (const { event, started_at: started } of events) {
    if (event === "enqueued" || event === "redriven") go("waiting");
    else if (event === "leased") go("leased");
    else if (event in ENDS) {
      // Only the last lease has an event of its own; earlier ones are known from their ends.
      if (started || BY_LEASE.includes(event)) go("leased");
      go(ENDS[event]);
    }
  }
  return taken;
}

// The events with one for the start of every lease, oldest first.
export function withLeases(events) {
  const known = new Set(events.filter(({ event }) => event === "leased").map(({ at }) => at));
  const found = [];
  for (const each of events) {
    const { started_at: at, attempt, worker } = each;
    if (at && !known.has(at)) {
      known.add(at);
      found.push({ at, event: "leased", attempt, worker, text: "" });
    }
    found.push(each);
  }
  return found.sort((a, b) => instant(a.at) - instant(b.at));
}

// The attempts, newest first: {attempt, worker, from, to, outcome, event}. The running one, if the
// job is leased, has no end. Events of old versions have no start: then it is null.
export function attemptsOf(events, job) {
  const ended = events
    .filter(({ event, started_at: started, kind }) => started || kind || BY_LEASE.includes(event))
    .filter(({ event, attempt }) => event in ENDS && (attempt > 0 || event === "completed"))
    .map((event) => ({
      attempt: event.attempt,
      worker: event.worker,
      from: event.started_at ?? null,
      to: event.at,
      outcome: event.event,
      event,
    }));
  if (job.state === "leased") {
    ended.push({ attempt: job.attempts, worker: job.worker, from: job.leased_at, to: null, outcome: "running", event: {} });
  }
  return ended.reverse();
}

// The spans between the events: {kind: "ran" | "waited" | "rested", from, to}; the last one of an
// unfinished job has no end.
export function spans(events, finished) {
  const all = withLeases(events);
  const found = [];
  let state = "waited";
  all.forEach((each, i) => {
    if (each.event === "leased") state = "ran";
    else if (each.event in ENDS) state = ENDS[each.event] === "waiting" ? "waited" : "rested";
    else if (each.event === "redriven" || each.event === "enqueued") state = "waited";
    const next = all[i + 1];
    if (next) found.push({ kind: state, from: instant(each.at), to: instant(next.at) });
    else if (!finished) found.push({ kind: state, from: instant(each.at), to: null });
  });
  return found;
}
