// Adds or edits a schedule, with a preview of its next ticks.
import { get, patch, post, v1 } from "../../lib/api.js";
import { html, useEffect, useId, useMemo, useState } from "../../lib/html.js";
import { parseJson, stringifyJson } from "../../lib/json.js";
import { useAction, useResource } from "../../lib/resource.js";
import { useMay } from "../../lib/session.js";
import { Dialog } from "../../parts/dialog.js";
import { Field, Form, errorOf } from "../../parts/form.js";
import { useReload } from "../../parts/listing.js";
import { Choices } from "../../parts/tabs.js";
import { Text } from "../../parts/text.js";
import { Ticks } from "./ticks.js";
import { bodyOf, valuesOf } from "./values.js";

const TYPING_MS = 300;
const ZONES = ["UTC", ...Intl.supportedValuesOf("timeZone").filter((zone) => zone !== "UTC")];
const MISSED = [
  ["skip", "skip them"],
  ["once", "enqueue one job for all of them"],
  ["all", "enqueue one job for each"],
];
const KINDS = [["task", "Task"], ["command", "Command"], ["webhook", "Webhook"]];
const FIELDS = [
  ...["name", "cron", "every", "zone", "grace", "missed_max"],
  ...["queue", "task", "payload", "command", "webhook", "priority", "tenant"],
];

export function ScheduleForm({ old = null, onClose }) {
  const may = useMay();
  const reload = useReload();
  const before = useMemo(() => (old ? valuesOf(old) : null), []);
  const [values, setValues] = useState(() => valuesOf(old));
  const set = (name) => (value) => setValues((all) => ({ ...all, [name]: value }));
  const saving = useAction(
    async () => {
      const body = bodyOf(values, before);
      return old ? patch(v1`schedules/${old.name}`, body) : post("v1/schedules", body);
    },
    { done: ({ name }) => `${old ? "Changed" : "Added"} ${name}`, quiet: true },
  );
  const submit = async () => {
    if ((await saving.run()) === undefined) return;
    reload();
    onClose();
  };
  const { error } = saving;
  const field = (name, label, more = {}) => html`<${Field}
    label=${label}
    value=${values[name]}
    onInput=${set(name)}
    error=${errorOf(error, name)}
    autocomplete="off"
    ...${more}
  />`;
  const isSame = old !== null && stringifyJson(values) === stringifyJson(before);
  return html`<${Dialog} title=${old ? `Edit ${old.name}` : "Add a schedule"} onClose=${onClose} footer="" wide>
    <${Form} submit=${old ? "Save the changes" : "Add the schedule"} busy=${saving.busy || isSame} error=${error} fields=${FIELDS} onSubmit=${submit} onCancel=${onClose}>
      ${!old && field("name", "Name", { placeholder: "nightly-report", required: true })}
      <fieldset>
        <legend>When</legend>
        <${Choices} label="Kind of rule" choices=${[["cron", "Cron rule"], ["every", "Interval"]]} chosen=${values.by} onChoose=${set("by")} />
        <div class="fields">
          ${values.by === "cron"
            ? html`${field("cron", "Cron rule", { hint: "Minute, hour, day, month, weekday; or @hourly, @daily, @weekly, @monthly.", class: "code" })}
                <${Zone} value=${values.zone} onInput=${set("zone")} error=${errorOf(error, "zone")} />`
            : field("every", "Interval", { hint: "For example 30s, 10m, 6h or 1d, counted from now." })}
        </div>
        <${Preview} values=${values} />
        <div class="fields">
          ${field("missed", "If ticks were missed", { type: "select", options: MISSED })}
          ${field("grace", "A tick is missed after", { hint: "No scheduler ran for this long, e.g. 1m." })}
          ${values.missed === "all" && field("missed_max", "At most the latest", { inputmode: "numeric" })}
        </div>
      </fieldset>
      <fieldset>
        <legend>What</legend>
        ${may.act("run-commands") && html`<${Choices} label="Kind of job" choices=${KINDS} chosen=${values.kind} onChoose=${set("kind")} />`}
        <div class="fields">
          ${values.kind === "task" && field("task", "Task", { placeholder: "report:send", required: true })}
          ${values.kind === "command" && field("command", "Command", { placeholder: "./backup.sh", hint: 'A line for the shell, or a JSON list: ["./backup.sh", "--all"]', required: true, class: "code", disabled: !may.act("run-commands") })}
          ${values.kind === "webhook" && field("webhook", "URL", { placeholder: "https://example.com/hook", required: true, type: "url", disabled: !may.act("run-commands") })}
          <${QueueField} value=${values.queue} onInput=${set("queue")} error=${errorOf(error, "queue")} />
        </div>
        ${values.kind === "task" && field("payload", "Payload, as JSON", { type: "textarea", rows: 4, spellcheck: false })}
        <div class="fields">
          ${field("priority", "Priority", { hint: "-100 to 100; higher ones run first.", inputmode: "numeric" })}
          ${field("tenant", "Tenant", { placeholder: "none", hint: old?.tenant ? "It can be changed, not removed." : undefined })}
        </div>
      </fieldset>
    </${Form}>
  </${Dialog}>`;
}

function Zone(properties) {
  const id = useId();
  return html`<${Field} label="Time zone" list=${id} autocomplete="off" ...${properties} />
    <datalist id=${id}>${ZONES.map((zone) => html`<option value=${zone} />`)}</datalist>`;
}

function QueueField(properties) {
  const id = useId();
  const { data } = useResource((signal) => get("v1/queues", {}, { signal }), []);
  return html`<${Field} label="Queue" list=${id} autocomplete="off" required ...${properties} />
    <datalist id=${id}>${(data?.queues ?? []).slice(0, 500).map(({ name }) => html`<option value=${name} />`)}</datalist>`;
}

// The next ticks of the rule in the form, while it is typed.
function Preview({ values }) {
  const { by, zone } = values;
  const rule = { [by]: values[by].trim(), ...(by === "cron" && { zone: zone.trim() }), count: 10 };
  const text = stringifyJson(rule);
  const [typed, setTyped] = useState(text);
  useEffect(() => {
    const timer = setTimeout(() => setTyped(text), TYPING_MS);
    return () => clearTimeout(timer);
  }, [text]);
  const { data, error } = useResource((signal) => get("v1/ticks", parseJson(typed), { signal }), [typed]);
  return html`<div class="preview" aria-live="polite">
    ${error && html`<p class="field-error"><${Text} value=${error.message} max=${300} /></p>`}
    ${!error && !data && html`<p class="hint">Computing the next ticks…</p>`}
    ${!error && data?.ticks.length === 0 && html`<p class="field-error">This rule has no tick to come.</p>`}
    ${!error && data?.ticks.length > 0 && html`<${Ticks} ticks=${data.ticks} zone=${by === "cron" ? zone.trim() : ""} />`}
  </div>`;
}
