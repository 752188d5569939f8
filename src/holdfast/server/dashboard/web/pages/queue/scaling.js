// How many workers keep the waiting time below a target, in words.
import { get } from "../../lib/api.js";
import { count, duration, plural, rate } from "../../lib/format.js";
import { html } from "../../lib/html.js";
import { usePref } from "../../lib/prefs.js";
import { useResource } from "../../lib/resource.js";
import { href } from "../../lib/router.js";
import { Icon } from "../../parts/icon.js";
import { Failure } from "../../parts/states.js";
import { Choices } from "../../parts/tabs.js";
import { Text } from "../../parts/text.js";

const TARGETS = [["1s", "1 s"], ["5s", "5 s"], ["30s", "30 s"], ["5m", "5 min"]];

export function Scaling({ name, paused }) {
  const [chosen, setChosen] = usePref("scaling-target", "30s");
  const target = TARGETS.some(([key]) => key === chosen) ? chosen : "30s";
  const { data, error } = useResource(
    (signal) => get("v1/scaling", { queue: name, target_wait: target }, { signal }),
    [name, target, paused],
    { every: 10_000 },
  );
  const found = data?.queues?.[0];
  return html`<section class="panel scaling" aria-labelledby="scaling-title">
    <div class="panel-head">
      <h2 id="scaling-title">Workers</h2>
      <div class="toolbar">
        <span class="hint">Jobs should start within</span>
        <${Choices} label="Jobs should start within" choices=${TARGETS} chosen=${target} onChoose=${setChosen} />
      </div>
    </div>
    <div class="panel-body">
      ${error && !data && html`<${Failure} error=${error} />`}
      ${!found && !error && html`<p class="hint">Computing…</p>`}
      ${found && html`<${Answer} found=${found} />`}
    </div>
  </section>`;
}

function verdict({ slots, workers, load }) {
  if (load.paused) return ["pause", "The queue is paused."];
  if ((load.run_ms ?? null) === null) return ["info", "Too little is known for advice."];
  if (slots > load.slots) return ["warn", "More workers are needed."];
  return workers < load.workers ? ["info", "Fewer workers would do."] : ["check", "The workers suffice."];
}

function Answer({ found }) {
  const { workers, slots, wait_ms: waitMs, reason, load, goal } = found;
  const [icon, title] = verdict(found);
  const unknown = (load.run_ms ?? null) === null;
  const wait = (waitMs ?? null) === null ? "cannot be estimated" : waitMs === 0 ? "none" : `about ${duration(waitMs / 1000)}`;
  return html`<p class="scaling-answer">
      <${Icon} name=${icon} />
      <span>
        <strong>${title}</strong>
        ${!unknown && !load.paused && ` Advised: ${plural(slots, "slot")}, that is ${plural(workers, "worker")} of ${plural(goal.worker_slots, "slot")}.`}
        ${" "}Serving it now: <a href=${href("/workers")}>${plural(load.workers, "worker")}</a>${load.workers > 0 && `, whose slots it shares with other queues: ${count(load.slots)} of them are its share`}.
      </span>
    </p>
    <p class="hint">Because <${Text} value=${reason} max=${400} />.</p>
    <dl class="facts">
      <div><dt>Wait of a job that is enqueued now</dt><dd>${wait}</dd></div>
      <div><dt>Arrivals</dt><dd>${rate(load.arrivals)}</dd></div>
      <div><dt>One attempt takes</dt><dd>${unknown ? "unknown" : duration(load.run_ms / 1000)}</dd></div>
      <div><dt>Attempts per job</dt><dd>${Number(load.attempts).toFixed(1)}</dd></div>
      <div><dt>Limits allow at a time</dt><dd>${(load.slots_bound ?? null) === null ? "any number" : count(load.slots_bound)}</dd></div>
      <div><dt>Limits allow</dt><dd>${(load.rate_bound ?? null) === null ? "any rate" : rate(load.rate_bound)}</dd></div>
    </dl>`;
}
