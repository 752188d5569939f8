// Acts on a whole queue: pause, resume, drain, clear and delete.
import { del, post, v1 } from "../../lib/api.js";
import { count, plural } from "../../lib/format.js";
import { html, useState } from "../../lib/html.js";
import { useAction } from "../../lib/resource.js";
import { go } from "../../lib/router.js";
import { useMay } from "../../lib/session.js";
import { Dialog, confirm } from "../../parts/dialog.js";
import { Field } from "../../parts/form.js";
import { Icon } from "../../parts/icon.js";
import { Failure } from "../../parts/states.js";
import { ClearDialog } from "./clear.js";

export function QueueActions({ queue, onAnswer }) {
  const may = useMay();
  const [open, setOpen] = useState(null);
  const { name } = queue;
  const resuming = useAction(() => post(v1`queues/${name}/resume`), { done: `Queue ${name} resumed` });
  const dropping = useAction(() => drop(name), {
    done: (answer) => answer && `Queue ${name} deleted, with ${plural(answer.jobs, "job")}`,
  });
  if (!may.act("operate")) return null;
  const resume = async () => {
    const answer = await resuming.run();
    if (answer) onAnswer(answer);
  };
  const remove = async () => {
    if (await dropping.run()) go("/");
  };
  const close = () => setOpen(null);
  return html`${queue.paused
      ? html`<button class="button" disabled=${resuming.busy} onClick=${resume}><${Icon} name="play" />Resume</button>`
      : html`<button class="button" onClick=${() => setOpen("pause")}><${Icon} name="pause" />Pause…</button>`}
    ${queue.accepting !== false &&
    html`<button class="button" onClick=${() => setOpen("drain")}>Drain…</button>`}
    <button class="button" onClick=${() => setOpen("clear")}>Clear…</button>
    ${may.act("admin") &&
    html`<button class="button button-quiet" disabled=${dropping.busy} onClick=${remove}>Delete…</button>`}
    ${open === "pause" && html`<${PauseDialog} name=${name} onClose=${close} onAnswer=${onAnswer} />`}
    ${open === "drain" && html`<${DrainDialog} queue=${queue} onClose=${close} onAnswer=${onAnswer} />`}
    ${open === "clear" && html`<${ClearDialog} name=${name} onClose=${close} />`}`;
}

// Counts the jobs of the queue, asks, and deletes it. Null if the user keeps it.
async function drop(name) {
  const { jobs } = await del(v1`queues/${name}`, { dry_run: true });
  const sure = await confirm({
    title: `Delete queue ${name}?`,
    text: jobs
      ? `Its ${plural(jobs, "job")} are deleted too: waiting, running and finished ones. This cannot be undone.`
      : "It has no jobs. Its settings and limits are deleted.",
    label: jobs ? `Delete it and ${plural(jobs, "job")}` : "Delete it",
    count: jobs,
    danger: true,
  });
  return sure ? del(v1`queues/${name}`) : null;
}

function PauseDialog({ name, onClose, onAnswer }) {
  const [text, setText] = useState("");
  const pausing = useAction(() => post(v1`queues/${name}/pause`, { text }), {
    done: `Queue ${name} paused`,
    quiet: true,
  });
  const submit = async (event) => {
    event.preventDefault();
    const answer = await pausing.run();
    if (!answer) return;
    onAnswer(answer);
    onClose();
  };
  const footer = html`<button class="button" type="button" onClick=${onClose}>Keep running</button>
    <button class="button button-primary" form="pause-form" disabled=${pausing.busy}>Pause</button>`;
  return html`<${Dialog} title=${`Pause queue ${name}`} onClose=${onClose} footer=${footer}>
    <${Failure} error=${pausing.error} />
    <p>No job of it starts until it is resumed. Running jobs go on, and new ones are accepted.</p>
    <form id="pause-form" onSubmit=${submit}>
      <${Field}
        label="Reason"
        value=${text}
        onInput=${setText}
        maxlength="1000"
        autocomplete="off"
        hint="Shown to everybody who asks why a job waits."
      />
    </form>
  </${Dialog}>`;
}

function DrainDialog({ queue, onClose, onAnswer }) {
  const { name } = queue;
  const draining = useAction(() => post(v1`queues/${name}/drain`, {}), { quiet: true });
  const drain = async () => {
    if (!(await draining.run())) return;
    onAnswer({ accepting: false });
    onClose();
  };
  const waiting = Number(queue.ready) + Number(queue.delayed) + Number(queue.blocked);
  const footer = html`<button class="button" onClick=${onClose}>Keep open</button>
    <button class="button button-primary" disabled=${draining.busy} onClick=${drain}>Drain</button>`;
  return html`<${Dialog} title=${`Drain queue ${name}`} onClose=${onClose} footer=${footer}>
    <${Failure} error=${draining.error} />
    <p>
      New jobs are refused, and the existing ones run to their end: ${count(queue.leased)} running and ${count(waiting)} waiting.
      Producers get an error until the queue accepts jobs again.
    </p>
  </${Dialog}>`;
}
