// Acts on many jobs that run, with their progress; and those that ended a moment ago.
import { get, post, v1 } from "../../lib/api.js";
import { instant, useNow } from "../../lib/clock.js";
import { count, percent } from "../../lib/format.js";
import { html, useEffect, useRef, useState } from "../../lib/html.js";
import { useLive } from "../../lib/live.js";
import { useAction } from "../../lib/resource.js";
import { useMay } from "../../lib/session.js";
import { Icon } from "../../parts/icon.js";
import { Text } from "../../parts/text.js";

const SHOWN_MS = 30_000;
const SHOWN_MAX = 4;
const POLL_MS = 700;

// All acts by id, live, and as answers to calls show them until then. Without live data they are
// asked for while one runs.
function useActs(started) {
  const { data, gone } = useLive("acts");
  const [asked, setAsked] = useState({});
  const learn = (act) => setAsked((before) => ({ ...before, [act.id]: act }));
  useEffect(() => Object.values(started).forEach(learn), [started]);
  const known = { ...asked, ...data };
  const isRunning = Object.values(known).some(({ state }) => state === "running");
  const polls = (gone !== null || data === null) && (isRunning || Object.keys(asked).length === 0);
  useEffect(() => {
    if (!polls) return undefined;
    let timer = null;
    const ask = () =>
      get("v1/acts").then(
        ({ acts }) => setAsked(Object.fromEntries(acts.map((act) => [act.id, act]))),
        () => {}, // the next one may be answered
      );
    ask();
    timer = setInterval(() => document.hidden || ask(), POLL_MS);
    return () => clearInterval(timer);
  }, [polls]);
  return { acts: known, learn };
}

const isRecent = ({ state, ended_at: ended }, at) =>
  state === "running" || ((state === "done" || state === "stopped") && at - (instant(ended) ?? 0) < SHOWN_MS);

// Shows the acts. `onProgress` is called when jobs were changed by one of them, with the acts that
// have ended.
export function Acts({ started, onProgress }) {
  const { acts, learn } = useActs(started);
  const [closed, setClosed] = useState([]);
  const at = useNow(5_000);
  const shown = Object.values(acts)
    .filter((act) => isRecent(act, at) && !closed.includes(act.id))
    .sort((a, b) => instant(a.created_at) - instant(b.created_at));
  const changed = shown.reduce((sum, { done, state }) => sum + Number(done) + (state === "running" ? 0 : 1), 0);
  const before = useRef(changed);
  useEffect(() => {
    if (before.current !== changed) onProgress(shown.filter(({ state }) => state !== "running").length);
    before.current = changed;
  }, [changed]);
  if (shown.length === 0) return null;
  return html`<section class="panel acts" aria-label="Acts on many jobs">
    ${shown.slice(-SHOWN_MAX).map(
      (act) => html`<${Act}
        key=${act.id}
        act=${act}
        learn=${learn}
        onClose=${() => setClosed([...closed, act.id])}
      />`,
    )}
  </section>`;
}

function Act({ act, learn, onClose }) {
  const { id, state, says, count: all, done, changed_since: changed, failed, left, by, text } = act;
  const may = useMay();
  const stopping = useAction(async () => learn(await post(v1`acts/${id}/stop`)));
  const resuming = useAction(async () => learn(await post(v1`acts/${id}/run`)));
  const reached = all - left;
  const rest = [
    `${count(done)} of ${count(all)} changed`,
    changed > 0 && `${count(changed)} left alone: changed since they were counted`,
    failed > 0 && `${count(failed)} failed`,
  ].filter(Boolean);
  return html`<div class="act">
    <div class="act-text">
      <strong><${Text} value=${says} max=${300} /></strong>
      <span class="hint" role="status">
        ${state}${state === "stopped" && text && html` <${Text} value=${text} max=${80} />`} · ${rest.join(" · ")}
        ${by && html` · by <${Text} value=${by} max=${40} />`}
      </span>
    </div>
    ${state !== "done" && html`<progress
      class=${failed > 0 ? "meter meter-bad" : "meter"}
      max=${all || 1}
      value=${reached}
      aria-label=${`${says}: ${percent(all ? reached / all : 1)}`}
    ></progress>`}
    <div class="actions">
      ${state === "running" && may.act("operate") &&
      html`<button class="button" disabled=${stopping.busy} onClick=${() => stopping.run()}>Stop</button>`}
      ${state === "stopped" && left > 0 && may.act("operate") &&
      html`<button class="button" disabled=${resuming.busy} onClick=${() => resuming.run()}>Continue</button>`}
      ${state !== "running" &&
      html`<button
        class="button button-quiet"
        aria-label="Close"
        onClick=${onClose}
      ><${Icon} name="close" /></button>`}
    </div>
  </div>`;
}
