// Everything that happened to a job: leases, gaps and acts, with who did it.
import { instant, useNow } from "../../lib/clock.js";
import { count, duration, localTime, plural, utcTime } from "../../lib/format.js";
import { html, useState } from "../../lib/html.js";
import { usePref } from "../../lib/prefs.js";
import { Text, Time } from "../../parts/text.js";
import { spans, withLeases } from "./path.js";

const SHOWN = 16;
const SPANS_MAX = 120;

// [words, colour of the dot]
const WORDS = {
  enqueued: ["Enqueued", "ready"],
  leased: ["Leased", "leased"],
  completed: ["Done", "done"],
  retried: ["Failed, waits to be retried", "overdue"],
  released: ["Released", "delayed"],
  buried: ["Died", "dead"],
  forwarded: ["Moved to the dead queue", "dead"],
  cancel_requested: ["Worker asked to stop it", "cancelled"],
  cancelled: ["Cancelled", "cancelled"],
  redriven: ["Put back", "ready"],
  edited: ["Edited", "accent"],
  moved: ["Moved to another queue", "accent"],
  retimed: ["Delayed", "delayed"],
  expedited: ["Expedited", "accent"],
  replaced: ["Replaced by a later job with its key", "accent"],
};
const NOW_WORDS = { ran: "running for", waited: "waiting for", rested: "untouched for" };
const SPAN_WORDS = { ran: "ran", waited: "waited", rested: "untouched for" };

export function Timeline({ events, finished }) {
  const at = useNow(1_000);
  const [all, setAll] = useState(false);
  const rows = withLeases(events);
  const gaps = spans(events, finished);
  const hidden = all ? 0 : Math.max(0, rows.length - SHOWN);
  return html`<${Strip} gaps=${gaps} now=${at} />
    ${hidden > 0 &&
    html`<button class="link" onClick=${() => setAll(true)}>Show ${plural(hidden, "earlier event")}</button>`}
    <ol class="timeline">
      ${rows.slice(hidden).map((row, i) => html`<${Row}
        key=${`${row.at}/${row.event}/${i + hidden}`}
        row=${row}
        gap=${gaps[i + hidden]}
        now=${at}
        begun=${rows[0].at}
      />`)}
    </ol>`;
}

const lengthOf = ({ from, to }, now) => Math.max(0, ((to ?? now) - from) / 1000);

// The job's life as one bar; short spans stay visible.
function Strip({ gaps, now }) {
  const shown = gaps.filter(({ kind, to }) => kind !== "rested" || to !== null).slice(-SPANS_MAX);
  const total = shown.reduce((sum, each) => sum + lengthOf(each, now), 0);
  if (total === 0) return null;
  const sum = (kind) => shown.filter((each) => each.kind === kind).reduce((all, each) => all + lengthOf(each, now), 0);
  const text = `waited ${duration(sum("waited"))}, ran ${duration(sum("ran"))} in all`;
  return html`<div class="strip-frame">
    <div class="strip" role="img" aria-label=${text}>
      ${shown.map(
        (each, i) => html`<span
          key=${i}
          class=${`span-${each.kind}`}
          title=${`${SPAN_WORDS[each.kind]} ${duration(lengthOf(each, now))}`}
          style=${{ flexGrow: String(Math.max(lengthOf(each, now) / total, 0.004)) }}
        />`,
      )}
    </div>
    <p class="legend">
      <span><span class="dot dot-ready" /> waited ${duration(sum("waited"))}</span>
      ${sum("ran") > 0 && html`<span><span class="dot dot-leased" /> ran ${duration(sum("ran"))}</span>`}
    </p>
  </div>`;
}

// Relative times of one moment say nothing about the order, so later ones count from the first.
function Since({ at, begun }) {
  const [preference] = usePref("time");
  const after = (instant(at) - instant(begun)) / 1000;
  if (preference !== "relative" || at === begun) return html`<${Time} value=${at} />`;
  return html`<time datetime=${at} title=${`${localTime(at)} here · ${utcTime(at)}`}>+ ${duration(after)}</time>`;
}

function Row({ row, gap, now, begun }) {
  const { at, event, attempt, worker, text, error, type } = row;
  const [words, colour] = WORDS[event] ?? [event, "accent"];
  const title = event === "leased" && attempt > 0 ? `${words}, attempt ${count(attempt)}` : words;
  const length = gap && lengthOf(gap, now);
  return html`<li>
    <span class=${`dot dot-${colour}`} />
    <div class="timeline-row">
      <p>
        <strong>${title}</strong>${worker && html` <span class="hint">by <${Text} value=${worker} max=${60} /></span>`}
        <span class="timeline-at"><${Since} at=${at} begun=${begun} /></span>
      </p>
      ${text && html`<p class="hint">${event === "buried" && "reason: "}<${Text} value=${text} max=${300} /></p>`}
      ${(error || type) && html`<p class="timeline-error"><${Text}
        value=${[type, error].filter(Boolean).join(": ")}
        max=${120}
      /></p>`}
      ${gap && (length >= 0.001 || gap.to === null) &&
      html`<p class=${`timeline-gap gap-${gap.kind}`}>${(gap.to === null ? NOW_WORDS : SPAN_WORDS)[gap.kind]} ${duration(length)}</p>`}
    </div>
  </li>`;
}

