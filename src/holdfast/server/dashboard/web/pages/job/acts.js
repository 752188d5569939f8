// Acts on one job, each with its options, and the same call for scripts.
import { del, get, patch, post, v1, withQuery } from "../../lib/api.js";
import { html, useId, useState } from "../../lib/html.js";
import { useAction, useResource } from "../../lib/resource.js";
import { flags } from "../../lib/shell.js";
import { showToast } from "../../lib/toasts.js";
import { CopyCall } from "../../parts/copy.js";
import { Dialog } from "../../parts/dialog.js";
import { Field, Form, errorOf } from "../../parts/form.js";
import { DURATION, QueueField } from "../jobs/act.js";

const OWN_QUEUE = "worker."; // the queue of one worker has this prefix and its name
const FINISHED = ["dead", "done", "cancelled"];

const text = { name: "text", label: "Reason", hint: "Shown in the timeline and in the audit log." };
const delay = {
  name: "delay",
  label: "Delay",
  ...DURATION,
  placeholder: "10m",
  hint: "e.g. 30s, 10m, 2h. Empty: at once.",
};
const expires = {
  name: "expires",
  label: "Give up after",
  ...DURATION,
  placeholder: "1h",
  hint: "If it has not started this long from now. Empty: as it is.",
};
const force = (label, hint) => ({ name: "force", type: "checkbox", label, hint });

const filled = (values) =>
  Object.fromEntries(Object.entries(values).filter(([, value]) => value !== "" && value !== false));

// Each: for which jobs, its title, fields, the call, the command, and what is said when it is done.
export const ACTS = {
  retry: {
    fits: ({ state }) => FINISHED.includes(state),
    title: "Put back",
    usual: true,
    does: "It goes back to its queue and runs again, with all attempts.",
    fields: () => [delay, text],
    call: (id, values) => ["POST", v1`jobs/${id}/retry`, filled(values)],
    command: (id, values) => `job retry ${id}${flags({ delay: values.delay })}`,
    done: "The job was put back.",
  },
  expedite: {
    fits: ({ state }) => state === "waiting",
    title: "Expedite",
    usual: true,
    does: "It is due now, ahead of all other jobs of its queue.",
    fields: () => [],
    call: (id) => ["POST", v1`jobs/${id}/expedite`, {}],
    command: (id) => `job expedite ${id}`,
    done: "The job is due now, ahead of all others.",
  },
  delay: {
    fits: ({ state }) => state === "waiting",
    title: "Delay",
    does: "It starts no earlier than this long from now.",
    fields: () => [{ ...delay, hint: "e.g. 30s, 10m, 2h", required: true }, text],
    call: (id, values) => ["PATCH", v1`jobs/${id}`, filled(values)],
    command: (id, values) => `job edit ${id}${flags({ delay: values.delay })}`,
    done: "The job was delayed.",
  },
  move: {
    fits: ({ state }) => state === "waiting" || state === "dead",
    title: "Move",
    does: "It goes to another queue and keeps its attempts.",
    fields: () => [{ name: "queue" }, expires, text],
    call: (id, values) => ["PATCH", v1`jobs/${id}`, filled(values)],
    command: (id, values) => `job edit ${id}${flags({ queue: values.queue, expires: values.expires })}`,
    done: "The job was moved.",
  },
  reroute: {
    fits: ({ state, queue }) => state === "waiting" && queue.startsWith(OWN_QUEUE),
    title: "Reroute",
    does: "It goes to another worker: the one named here, or the healthiest and least loaded that knows its task.",
    fields: () => [{ name: "to" }, expires],
    call: (id, values) => ["POST", v1`jobs/${id}/reroute`, filled(values)],
    command: (id, values) => `job reroute ${id}${flags(values)}`,
    done: ({ worker }) => `The job goes to worker ${worker}.`,
  },
  cancel: {
    fits: ({ state }) => state === "waiting" || state === "leased",
    title: "Cancel",
    usual: true,
    danger: true,
    does: ({ state }) =>
      state === "leased"
        ? "Its worker is asked to stop it. If it completes first, it is done."
        : "It ends as cancelled and does not run.",
    fields: ({ state }) => [
      ...(state === "leased"
        ? [force("End it at once", "Its worker kills it; other jobs in the same process run again.")]
        : []),
      text,
    ],
    call: (id, values) => ["POST", v1`jobs/${id}/cancel`, filled(values)],
    command: (id, values) => `job cancel ${id}${flags(values)}`,
    done: ({ state }) => (state === "cancelled" ? "The job was cancelled." : "Its worker is asked to stop it."),
  },
  delete: {
    fits: () => true,
    title: "Delete",
    danger: true,
    does: "The job, its result and its timeline are removed permanently.",
    fields: ({ state }) =>
      state === "leased" ? [force("Delete it although it runs", "Its worker loses it.")] : [],
    call: (id, values) => ["DELETE", withQuery(v1`jobs/${id}`, filled(values))],
    command: (id, values) => `job delete ${id}${flags(values)}`,
    done: "The job was deleted.",
  },
};

const send = { POST: post, PATCH: patch, DELETE: del };

export function ActDialog({ name, job, onClose, onDone }) {
  const { title, does, fields, call, command, done, danger } = ACTS[name];
  const form = useId();
  const [values, setValues] = useState({});
  const all = fields(job);
  const [method, path, body] = call(job.id, values);
  const acting = useAction(() => send[method](path, body), { quiet: true });
  const submit = async () => {
    const answer = await acting.run();
    if (answer === undefined) return;
    showToast(typeof done === "function" ? done(answer) : done);
    onClose();
    onDone(name, answer);
  };
  const set = (field) => (value) => setValues({ ...values, [field]: value });
  return html`<${Dialog}
    title=${`${title} this job?`}
    onClose=${onClose}
    footer=${html`<${Footer} form=${form} title=${title} danger=${danger} busy=${acting.busy} onClose=${onClose} />`}
  >
    <p>${typeof does === "function" ? does(job) : does}</p>
    <${Form} id=${form} onSubmit=${submit} error=${acting.error} fields=${all.map((field) => field.name)}>
      ${all.map((field) => html`<${Option}
        key=${field.name}
        field=${field}
        value=${values[field.name]}
        onInput=${set(field.name)}
        error=${errorOf(acting.error, field.name)}
        job=${job}
      />`)}
    </${Form}>
    <${CopyCall} method=${method} path=${path} body=${body} command=${`holdfast ${command(job.id, values)}`} />
  </${Dialog}>`;
}

export const Footer = ({ form, title, danger, busy, onClose }) => html`<button class="button" onClick=${onClose}>Keep as is</button>
  <button
    form=${form}
    class=${`button ${danger ? "button-danger" : "button-primary"}`}
    disabled=${busy}
  >${title}</button>`;

function Option({ field, value, onInput, error, job }) {
  const { name, ...more } = field;
  if (name === "queue") return html`<${QueueField} value=${value} onInput=${onInput} error=${error} />`;
  if (name === "to") return html`<${WorkerField} value=${value} onInput=${onInput} error=${error} job=${job} />`;
  return html`<${Field}
    ...${more}
    value=${value ?? (more.type === "checkbox" ? false : "")}
    onInput=${onInput}
    error=${error}
  />`;
}

function WorkerField({ value, onInput, error, job }) {
  const { data } = useResource((signal) => get("v1/workers", {}, { signal }), []);
  const names = (data?.workers ?? []).map(({ name }) => name).filter((name) => `${OWN_QUEUE}${name}` !== job.queue);
  const options = [["", "the healthiest that knows its task"], ...names.map((name) => [name, name])];
  return html`<${Field}
    label="To worker"
    type="select"
    options=${options}
    value=${value ?? ""}
    onInput=${onInput}
    error=${error}
  />`;
}
