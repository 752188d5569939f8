// An act on many jobs: its options, then the server counts the jobs and says in words what will
// happen, then it is confirmed and runs in the background.
import { get, post, v1 } from "../../lib/api.js";
import { count, plural, sentence } from "../../lib/format.js";
import { html, useId, useState } from "../../lib/html.js";
import { parseJson } from "../../lib/json.js";
import { useAction, useResource } from "../../lib/resource.js";
import { CopyCall } from "../../parts/copy.js";
import { Dialog, confirm } from "../../parts/dialog.js";
import { Field, Form, errorOf } from "../../parts/form.js";
import { Notice } from "./notice.js";

// What is said of each act, and its options.
export const ACTS = {
  cancel: {
    title: "Cancel",
    danger: true,
    fields: [],
    does: "Waiting jobs end as cancelled, and workers are asked to stop running ones.",
  },
  retry: {
    title: "Put back",
    fields: ["delay"],
    does:
      "Dead, cancelled or done jobs run again, with their attempts reset." +
      " If the filter names no state, only dead ones do.",
  },
  expedite: { title: "Expedite", fields: [], does: "Waiting jobs are due now, ahead of all others." },
  move: { title: "Move", fields: ["queue", "expires"], does: "Waiting and dead jobs go to another queue." },
  delay: { title: "Delay", fields: ["delay"], does: "Waiting jobs start no earlier than this long from now." },
  edit: {
    title: "Edit",
    fields: ["patch", "priority", "expires", "labels"],
    does: "Waiting and dead jobs get other values.",
  },
  delete: { title: "Delete", fields: ["force"], does: "Jobs are removed permanently.", danger: true },
};

// Durations as the server reads them; the browser says so before anything is sent.
export const DURATION = {
  pattern: "[0-9]{1,6}([.][0-9]{1,3})?(ms|s|m|h|d|w)?",
  title: "A duration such as 30s, 10m or 2h",
};

const INPUTS = {
  delay: { label: "Delay", ...DURATION, placeholder: "10m", hint: "e.g. 30s, 10m, 2h" },
  expires: {
    label: "Give up after",
    ...DURATION,
    placeholder: "1h",
    hint: "If a job has not started this long from now. Empty: as it is.",
  },
  priority: { label: "Priority", type: "number", min: -100, max: 100, hint: "-100 to 100. Empty: as it is." },
  patch: {
    label: "Patch for each payload",
    type: "textarea",
    rows: 5,
    placeholder: '{"currency": "EUR", "old_field": null}',
    hint: "A JSON merge patch: null removes a key. Empty: as it is.",
  },
  labels: { label: "Labels to set", type: "textarea", rows: 2, placeholder: "region=eu", hint: "One NAME=VALUE per line." },
  force: { label: "Also delete running jobs", type: "checkbox", hint: "Their workers lose them." },
};

// NAME=VALUE per line. Raises an error.
export function pairsOf(text) {
  const lines = text.split("\n").filter((line) => line.trim());
  return Object.fromEntries(
    lines.map((line) => {
      const at = line.indexOf("=");
      if (at < 1) throw new Error(`labels: "${line.slice(0, 60)}" is not NAME=VALUE`);
      return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
    }),
  );
}

function patchOf(text) {
  try {
    return parseJson(text);
  } catch (error) {
    throw new Error(`patch: not JSON: ${error.message}`);
  }
}

// The body of POST /v1/acts. Raises an error that begins with the name of the field.
export function bodyOf(act, values, target) {
  const body = { act, ...target };
  for (const name of [...ACTS[act].fields, "text"]) {
    const value = values[name];
    if (value === undefined || value === "" || value === false) continue;
    if (name === "patch") body.patch = patchOf(value);
    else if (name === "labels") body.labels = pairsOf(value);
    else body[name] = name === "priority" ? Number(value) : value;
  }
  return body;
}

// `target` is {filter} or {ids}, and `says` names it in words. `onRun` gets the running act.
export function ActDialog({ act, target, says, onClose, onRun }) {
  const { title, fields, does, danger } = ACTS[act];
  const form = useId();
  const [values, setValues] = useState({});
  const [none, setNone] = useState(null);
  const set = (name) => (value) => {
    setNone(null);
    setValues((before) => ({ ...before, [name]: value }));
  };
  const counting = useAction(async () => post("v1/acts", bodyOf(act, values, target)), { quiet: true });
  const running = useAction((id) => post(v1`acts/${id}/run`));
  const submit = async () => {
    const counted = await counting.run();
    if (!counted) return;
    if (counted.count === 0) {
      setNone(counted);
      return;
    }
    onClose();
    const rest = (target.ids?.length ?? counted.count) - counted.count;
    if (await confirmed(counted, title, danger, rest)) {
      const started = await running.run(counted.id);
      if (started) onRun(started);
    }
  };
  const footer = html`<button class="button" onClick=${onClose}>Keep as is</button>
    <button form=${form} class="button button-primary" disabled=${counting.busy}>Count the jobs</button>`;
  return html`<${Dialog} title=${`${title} ${says}`} onClose=${onClose} footer=${footer}>
    <p class="hint">${does} Nothing changes before you confirm the counted jobs.</p>
    ${none && html`<${Notice}>No job among these can be changed so: ${does.toLowerCase()}</${Notice}>`}
    <${Form} id=${form} error=${counting.error} fields=${fields} onSubmit=${submit}>
      ${fields.map((name) => html`<${Option}
        key=${name}
        name=${name}
        values=${values}
        set=${set}
        error=${counting.error}
        required=${act === "delay" && name === "delay"}
      />`)}
      <${Field}
        label="Reason"
        hint="Shown in the timelines and in the audit log."
        value=${values.text ?? ""}
        onInput=${set("text")}
        maxlength=${1_000}
      />
    </${Form}>
    <${CopyCall} method="POST" path="v1/acts" body=${safeBody(act, values, target)} />
  </${Dialog}>`;
}

function safeBody(act, values, target) {
  try {
    return bodyOf(act, values, target);
  } catch {
    return { act, ...target };
  }
}

function Option({ name, values, set, error, required }) {
  if (name === "queue") return html`<${QueueField}
    value=${values.queue}
    onInput=${set("queue")}
    error=${errorOf(error, "queue")}
  />`;
  return html`<${Field}
    ...${INPUTS[name]}
    required=${required}
    value=${values[name] ?? ""}
    onInput=${set(name)}
    error=${errorOf(error, name)}
  />`;
}

export function QueueField({ value, onInput, error, label = "To queue" }) {
  const { data } = useResource((signal) => get("v1/queues", {}, { signal }), []);
  const known = (data?.queues ?? []).map(({ name }) => name);
  const options = [["", known.length ? "Choose a queue" : "Loading queues…"], ...known.map((name) => [name, name])];
  return html`<${Field}
    label=${label}
    type="select"
    options=${options}
    value=${value ?? ""}
    onInput=${onInput}
    error=${error}
    required
  />`;
}

// The count must be typed if it is large.
function confirmed({ says, notes, count: jobs, capped, states }, title, danger, rest) {
  const parts = Object.entries(states).map(([state, each]) => `${count(each)} ${state}`);
  const text = [
    parts.length > 1 && `${parts.join(", ")}.`,
    rest > 0 && `${plural(rest, "other selected job")} cannot be changed so.`,
    ...notes.map(sentence),
    "Jobs that change in the meantime are left alone.",
  ]
    .filter(Boolean)
    .join(" ");
  const label = `${title} ${capped ? "the newest " : ""}${plural(jobs, "job")}`;
  return confirm({ title: says, text, label, count: jobs, danger });
}
