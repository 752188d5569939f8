// Why a queue does not run or grow: paused, closed, draining, without workers.
import { patch, post, v1 } from "../../lib/api.js";
import { count, percent, plural } from "../../lib/format.js";
import { html, useEffect, useRef } from "../../lib/html.js";
import { useAction } from "../../lib/resource.js";
import { useMay } from "../../lib/session.js";
import { CopyButton } from "../../parts/copy.js";
import { Icon } from "../../parts/icon.js";
import { Text } from "../../parts/text.js";
import { Progress } from "../../parts/progress.js";

export function QueueNotices({ queue, stats, onAnswer }) {
  const unserved = stats.workers === 0 && queue.ready > 0 && !queue.paused;
  return html`${queue.paused && html`<${Paused} queue=${queue} stats=${stats} onAnswer=${onAnswer} />`}
    ${queue.accepting === false && html`<${Draining} queue=${queue} stats=${stats} onAnswer=${onAnswer} />`}
    ${unserved && html`<${Unserved} queue=${queue} />`}`;
}

function Paused({ queue, stats, onAnswer }) {
  const may = useMay();
  const { name } = queue;
  const resuming = useAction(() => post(v1`queues/${name}/resume`), { done: `Queue ${name} resumed` });
  const resume = async () => {
    const answer = await resuming.run();
    if (answer) onAnswer(answer);
  };
  return html`<div class="notice notice-warn">
    <${Icon} name="pause" />
    <div class="notice-text">
      <strong>Paused: no job of this queue starts.</strong>
      <p>
        ${stats.paused_reason
          ? html`<${Text} value=${stats.paused_reason} max=${500} />`
          : "No reason was given. Running jobs go on, and new ones are accepted."}
      </p>
    </div>
    ${may.act("operate") &&
    html`<button class="button" disabled=${resuming.busy} onClick=${resume}>Resume</button>`}
  </div>`;
}

const leftIn = (queue) =>
  ["ready", "delayed", "blocked", "leased"].reduce((sum, key) => sum + Number(queue[key] ?? 0), 0);

// The most jobs that this page saw since the queue was closed: the progress is relative to it.
function useMost(left) {
  const most = useRef(left);
  useEffect(() => () => (most.current = 0), []);
  most.current = Math.max(most.current, left);
  return most.current;
}

function Draining({ queue, stats, onAnswer }) {
  const may = useMay();
  const { name } = queue;
  const left = leftIn(queue);
  const most = useMost(left);
  const opening = useAction(() => patch(v1`queues/${name}`, { accepting: true }), {
    done: `Queue ${name} accepts jobs again`,
  });
  const open = async () => {
    const answer = await opening.run();
    if (answer) onAnswer(answer);
  };
  const held = queue.paused ? "It is paused, so they do not start." : "";
  const unserved = stats.workers === 0 ? "No worker serves it, so they do not start." : "";
  const title = left === 0 ? "Drained: no job is left, and no new one is accepted." : "Draining: no new job is accepted.";
  return html`<div class="notice">
    <${Icon} name=${left === 0 ? "check" : "info"} />
    <div class="notice-text">
      <strong>${title}</strong>
      ${left > 0 &&
      html`<p>
          ${plural(left, "job")} left: ${count(queue.leased)} running, ${count(left - queue.leased)} waiting. ${held || unserved}
        </p>
        ${most > left && html`<${Progress} share=${1 - left / most} label=${`${percent(1 - left / most)} of ${plural(most, "job")} ended`} />`}`}
    </div>
    ${may.act("operate") &&
    html`<button class="button" disabled=${opening.busy} onClick=${open}>Accept jobs again</button>`}
  </div>`;
}

function Unserved({ queue }) {
  const command = `holdfast worker start --queues ${queue.name}`;
  return html`<div class="notice notice-warn">
    <${Icon} name="warn" />
    <div class="notice-text">
      <strong>${plural(queue.ready, "job")} ready, and no worker serves this queue.</strong>
      <p>Start one: <code>${command}</code></p>
    </div>
    <${CopyButton} text=${command} label="Copy command" />
  </div>`;
}
