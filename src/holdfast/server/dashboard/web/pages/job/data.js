// One job: read once with its payload and result, then live. The latest answer counts.
import { get, v1 } from "../../lib/api.js";
import { useEffect, useRef, useState } from "../../lib/html.js";
import { useLive } from "../../lib/live.js";
import { useResource } from "../../lib/resource.js";

const POLL_MS = 1_500;
const EXPLAIN_MS = 5_000;
// The live view leaves these out: they are large, and change only with an edit or at the end.
const VALUES = ["payload", "payload_base64", "payload_bytes", "content_type", "result"];

export const isFinished = (job) => ["done", "dead", "cancelled"].includes(job.state);

const pick = (source, names) =>
  Object.fromEntries(names.filter((name) => source && name in source).map((name) => [name, source[name]]));

const eventsOf = (timeline) => (Array.isArray(timeline) ? timeline : (timeline?.events ?? []));

const outputOf = (output) => (typeof output === "string" ? output : (output?.output ?? ""));

const isDeleted = (error) => error?.status === 404 || error?.code === "not_found";

// {job, events, output, error, gone, reload, forget}. `gone` is set if the job has been deleted
// meanwhile, or is to be forgotten.
export function useJob(id) {
  const live = useLive(`job:${id}`);
  const polls = live.gone !== null && !isDeleted(live.gone);
  const [forgotten, setForgotten] = useState(false);
  const read = useResource(
    async (signal) => {
      const [job, timeline] = await Promise.all([
        get(v1`jobs/${id}`, {}, { signal }),
        get(v1`jobs/${id}/timeline`, {}, { signal }),
      ]);
      return { job, events: timeline.events, output: job.output ?? "" };
    },
    [id],
    { every: polls ? POLL_MS : 0 },
  );
  const [latest, setLatest] = useState(null);
  useEffect(() => {
    if (read.data) setLatest(read.data);
  }, [read.data]);
  useEffect(() => {
    if (!live.data?.job) return;
    const job = { ...pick(read.data?.job, VALUES), ...live.data.job };
    setLatest({ job, events: eventsOf(live.data.timeline), output: outputOf(live.data.output) });
  }, [live.data]);
  // An edit or the end may have changed payload and result.
  const mark = live.data?.job && `${live.data.job.state}/${eventsOf(live.data.timeline).length}`;
  const before = useRef(mark);
  useEffect(() => {
    if (before.current && mark && mark !== before.current) read.reload();
    before.current = mark;
  }, [mark]);

  const isGone = forgotten || isDeleted(read.error) || isDeleted(live.gone);
  return {
    ...(latest ?? { job: null, events: [], output: "" }),
    error: latest === null || !isGone ? read.error : null,
    gone: latest !== null && isGone,
    reload: read.reload,
    forget: () => setForgotten(true),
  };
}

// Why the job is in its state, asked again when it changes and while it is not finished.
export function useExplanation(id, job, events, gone) {
  const answer = useResource((signal) => get(v1`jobs/${id}/explain`, {}, { signal }), [id], {
    every: gone || isFinished(job) ? 0 : EXPLAIN_MS,
  });
  const mark = `${job.state}/${events.length}/${job.due_at}/${job.queue}`;
  const before = useRef(mark);
  useEffect(() => {
    if (before.current !== mark) answer.reload();
    before.current = mark;
  }, [mark]);
  return answer;
}
