// The attempts of a job side by side: outcome, worker, duration, error and stack.
import { instant, useNow } from "../../lib/clock.js";
import { count, duration, plural } from "../../lib/format.js";
import { html, useState } from "../../lib/html.js";
import { Text, Time } from "../../parts/text.js";
import { attemptsOf } from "./path.js";
import { Stack } from "./stack.js";

const SHOWN = 6;
const ERROR_MAX = 1_000;

const OUTCOMES = {
  running: ["running", "leased"],
  completed: ["done", "done"],
  retried: ["failed", "overdue"],
  released: ["released", "delayed"],
  buried: ["died", "dead"],
  forwarded: ["died", "dead"],
  cancelled: ["cancelled", "cancelled"],
};
const KINDS = {
  timeout: "It ran longer than its timeout.",
  crash: "Its process crashed.",
  overdue: "Its lease expired: the worker was silent.",
  expired: "It did not start in time.",
};

export function Attempts({ events, job }) {
  const [all, setAll] = useState(false);
  const attempts = attemptsOf(events, job);
  if (attempts.length === 0) return null;
  const shown = all ? attempts : attempts.slice(0, SHOWN);
  const most = job.max_attempts ? ` of at most ${count(job.max_attempts)}` : "";
  return html`<section class="panel" aria-labelledby="attempts-title">
    <div class="panel-head">
      <h2 id="attempts-title">Attempts <span class="hint">${count(job.attempts)}${most}, newest first</span></h2>
      ${job.crashes > 0 && html`<span class="badge badge-warn">${plural(job.crashes, "crash", "crashes")}</span>`}
    </div>
    <div class="attempts" tabindex="0" role="region" aria-label="Attempts side by side">
      ${shown.map((each, i) => html`<${Attempt}
        key=${`${each.to}/${attempts.length - i}`}
        each=${each}
        earlier=${attempts[i + 1]}
      />`)}
      ${attempts.length > shown.length &&
      html`<button
        class="button attempts-more"
        onClick=${() => setAll(true)}
      >Show ${count(attempts.length - shown.length)} earlier</button>`}
    </div>
  </section>`;
}

const faultOf = ({ event: { type, error } }) => [type, error].filter(Boolean).join(": ");

function Attempt({ each, earlier }) {
  const { attempt, worker, from, to, outcome, event } = each;
  const [word, colour] = OUTCOMES[outcome] ?? [outcome, "blocked"];
  const fault = faultOf(each);
  const same = fault && earlier && faultOf(earlier) === fault;
  const { kind, exit_code: exit, signal, trace, text } = event;
  return html`<article class=${`attempt attempt-${colour}`}>
    <h3><span class=${`dot dot-${colour}`} />Attempt ${count(attempt)} <span class="hint">${word}</span></h3>
    <dl class="fact-pairs facts-tight">
      <dt>Worker</dt>
      <dd><${Text} value=${worker || null} max=${60} /></dd>
      <dt>Started</dt>
      <dd><${Time} value=${from} /></dd>
      <dt>Ran for</dt>
      <dd><${Length} from=${from} to=${to} /></dd>
      ${exit !== null && exit !== undefined && html`<dt>Exit code</dt><dd>${count(exit)}</dd>`}
      ${signal !== null && signal !== undefined && html`<dt>Signal</dt><dd>${count(signal)}</dd>`}
    </dl>
    ${KINDS[kind] && html`<p class="hint">${KINDS[kind]}</p>`}
    ${fault && html`<p class="fault"><${Text} value=${fault} max=${ERROR_MAX} /></p>`}
    ${same && html`<p class="hint">The same error as in the attempt before.</p>`}
    ${!fault && text && html`<p class="hint"><${Text} value=${text} max=${300} /></p>`}
    ${trace && html`<${Stack} trace=${trace} />`}
  </article>`;
}

function Length({ from, to }) {
  const at = useNow(1_000);
  if (instant(from) === null) return html`<span class="unknown">–</span>`;
  return duration(Math.max(0, (instant(to) ?? at) - instant(from)) / 1000);
}

