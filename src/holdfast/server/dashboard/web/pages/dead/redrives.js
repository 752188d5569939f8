// Redrives: dead letters that go back gradually, with live progress and cancel.
import { get, post, v1 } from "../../lib/api.js";
import { instant, now, useNow } from "../../lib/clock.js";
import { count, plural, sentence } from "../../lib/format.js";
import { html, useMemo } from "../../lib/html.js";
import { useLive } from "../../lib/live.js";
import { useAction, useResource } from "../../lib/resource.js";
import { href } from "../../lib/router.js";
import { useMay } from "../../lib/session.js";
import { Progress } from "../../parts/progress.js";
import { Empty } from "../../parts/states.js";
import { Text, Time } from "../../parts/text.js";
import { wordsOf } from "./filter.js";

const SHOWN_MAX = 50;
const NEWS_MS = { stopped: 600_000, finished: 60_000, cancelled: 15_000 };

export const isRunning = ({ state }) => state === "running" || state === "canary";

// True for a redrive that runs, or ended so lately that its outcome is news.
const isNews = (redrive) =>
  isRunning(redrive) || now() - (instant(redrive.ended_at) ?? 0) < (NEWS_MS[redrive.state] ?? 0);

// All redrives, newest first: the stored ones, and the live state of recent ones.
export function useRedrives() {
  const { data: live } = useLive("redrives");
  const { data: stored } = useResource((signal) => get("v1/redrives", {}, { signal }), []);
  return useMemo(() => {
    const found = new Map((stored?.redrives ?? []).map((each) => [each.id, each]));
    for (const id of Object.keys(live ?? {})) found.set(id, live[id]);
    return [...found.values()].sort((a, b) => (a.started_at < b.started_at ? 1 : -1));
  }, [live, stored]);
}

// The redrives to look at now.
export function CurrentRedrives({ redrives }) {
  useNow(5_000);
  const shown = redrives.filter(isNews);
  return (
    shown.length > 0 &&
    html`<section class="panel" aria-label="Current redrives">
      <ul class="redrives">${shown.map((each) => html`<${RedriveRow} key=${each.id} redrive=${each} />`)}</ul>
    </section>`
  );
}

export function Redrives({ redrives }) {
  if (redrives.length === 0) {
    return html`<div class="panel"><h2 class="sr-only">Redrives</h2><${Empty} title="No redrives">
      A redrive puts many dead letters back in the background, at a rate that the queue can bear. Choose a cause and
      “Put back”, then “Gradually”.
    </${Empty}></div>`;
  }
  return html`<section class="panel" aria-label="Redrives">
    <ul class="redrives">
      ${redrives.slice(0, SHOWN_MAX).map((each) => html`<${RedriveRow} key=${each.id} redrive=${each} />`)}
    </ul>
  </section>`;
}

const BADGES = { running: "", canary: "badge-warn", finished: "badge-good", cancelled: "", stopped: "badge-critical" };
const WORDS = { canary: "watching the first ones" };

// The part of a stored filter that the address can have.
function linked({ queue, task, tenant, reason, fingerprint } = {}) {
  return { queue, task, tenant, reason, fingerprint };
}

function RedriveRow({ redrive }) {
  const may = useMay();
  const { id, state, text, by, total, estimated, left, retried, canaries, rate } = redrive;
  const cancelling = useAction(() => post(v1`redrives/${id}/cancel`), { done: "Redrive cancelled" });
  const reached = Math.max(0, total - left);
  const share = total > 0 ? reached / total : null;
  const label = `${count(retried)} of ${count(total, estimated)} put back`;
  return html`<li class="redrive">
    <div class="redrive-head">
      <div class="redrive-title">
        <a class="redrive-of" href=${href("/dead", linked(redrive.filter))}>Dead letters ${wordsOf(redrive.filter ?? {})}</a> <span class=${`badge ${BADGES[state] ?? ""}`}>${WORDS[state] ?? state}</span>
        <p class="hint">
          Started <${Time} value=${redrive.started_at} />${by && html` by <${Text} value=${by} max=${60} />`}${rate && html`, at <${Text} value=${rate} />`}${canaries > 0 && `, ${plural(canaries, "letter")} first`}${redrive.ended_at && html`, ended <${Time} value=${redrive.ended_at} />`}
        </p>
        ${text && html`<p><${Text} value=${sentence(state === "cancelled" ? `cancelled ${text}` : text)} max=${400} /></p>`}
      </div>
      ${isRunning(redrive) &&
      may.act("operate") &&
      html`<button class="button" disabled=${cancelling.busy} onClick=${() => cancelling.run()}>Cancel</button>`}
    </div>
    <${Progress} share=${share} label=${label} />
    <${Outcomes} redrive=${redrive} />
  </li>`;
}

// The letters that went back, by what became of them; then those that did not go.
function Outcomes({ redrive }) {
  const { done, died, recurred, open, other, capped, unfit, changed } = redrive;
  const parts = [
    [done, "done now", "done"],
    [open, "waiting or running", "leased"],
    [died, recurred ? `died again, ${count(recurred)} of the same cause` : "died again", "dead"],
    [other, "cancelled or deleted", "blocked"],
    [capped, "skipped: put back too often", "blocked"],
    [unfit, "skipped: the payload cannot be patched", "blocked"],
    [changed, "skipped: changed by others", "blocked"],
  ].filter(([number]) => number > 0);
  return html`<ul class="legend">
    ${parts.map(([number, words, tone]) => html`<li key=${words}><span class=${`dot dot-${tone}`} />${count(number)} ${words}</li>`)}
  </ul>`;
}
