// The form of one limit.
import { put, v1 } from "../../lib/api.js";
import { html, useState } from "../../lib/html.js";
import { useAction } from "../../lib/resource.js";
import { Dialog } from "../../parts/dialog.js";
import { Field } from "../../parts/form.js";
import { Failure } from "../../parts/states.js";
import { fieldMessage, numberOf, rateText } from "./texts.js";

const FIELDS = ["name", "concurrency", "rate", "key", "task"];

// `limit` is {} for a new one. A limit keeps its name: the name is the identity of its slots.
export function LimitDialog({ queue, limit, taken, onClose, onAnswer }) {
  const isNew = limit.name === undefined;
  const [form, setForm] = useState({
    name: limit.name ?? "",
    concurrency: String(limit.concurrency ?? ""),
    rate: rateText(limit.rate),
    key: limit.key ?? "",
    task: limit.task ?? "",
  });
  const saving = useAction(
    () =>
      put(v1`queues/${queue}/limits/${form.name}`, {
        concurrency: numberOf(form.concurrency),
        rate: form.rate.trim() || null,
        key: form.key.trim(),
        task: form.task.trim() || null,
      }),
    { done: `Limit ${form.name} saved`, quiet: true },
  );
  const field = (name) => ({
    value: form[name],
    onInput: (value) => setForm({ ...form, [name]: value }),
    error: fieldMessage(saving.error, [name], RATE[name]),
    autocomplete: "off",
  });
  const clash = isNew && taken.includes(form.name);
  const submit = async (event) => {
    event.preventDefault();
    const answer = await saving.run();
    if (!answer) return;
    onAnswer({ limits: answer.limits });
    onClose();
  };
  const shown = saving.error && !FIELDS.some((name) => fieldMessage(saving.error, [name]));
  const footer = html`<button class="button" onClick=${onClose}>Discard</button>
    <button class="button button-primary" form="limit-form" disabled=${saving.busy || clash || !form.name}>
      Save the limit
    </button>`;
  return html`<${Dialog} title=${isNew ? `Add a limit to ${queue}` : `Limit ${limit.name} of ${queue}`} onClose=${onClose} footer=${footer}>
    ${shown && html`<${Failure} error=${saving.error} />`}
    <form id="limit-form" class="form" onSubmit=${submit}>
      <${Field}
        label="Name"
        ...${field("name")}
        error=${clash ? "This queue has a limit with this name already." : field("name").error}
        readonly=${!isNew}
        hint="Queues whose limits have the same name share its slots."
      />
      <${Field} label="Jobs at the same time" inputmode="numeric" ...${field("concurrency")} hint="Empty: any number." />
      <${Field} label="Jobs per time" ...${field("rate")} hint="For example 10/s, or 100/m burst 20. Empty: any rate." />
      <${Field}
        label="For each"
        ...${field("key")}
        hint="A template such as {tenant} or {tenant}:{region} gives each key its own bound. Empty: all jobs together."
      />
      <${Field} label="Only of the task" ...${field("task")} hint="Empty: every task." />
    </form>
  </${Dialog}>`;
}

const RATE = { rate: "Expected a rate such as 10/s or 100/m burst 20" };
