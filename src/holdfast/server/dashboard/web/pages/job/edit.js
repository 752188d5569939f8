// Edits a waiting or dead job, shows the difference first, and retries it if that is wanted.
import { patch, post, v1 } from "../../lib/api.js";
import { bytes } from "../../lib/format.js";
import { html, useId, useMemo, useState } from "../../lib/html.js";
import { parseJson, stringifyJson } from "../../lib/json.js";
import { useAction } from "../../lib/resource.js";
import { flags } from "../../lib/shell.js";
import { showToast } from "../../lib/toasts.js";
import { CopyCall } from "../../parts/copy.js";
import { Dialog } from "../../parts/dialog.js";
import { Diff } from "../../parts/diff.js";
import { Field, Form, errorOf } from "../../parts/form.js";
import { DURATION, pairsOf } from "../jobs/act.js";

const EDITED_MAX = 200_000;

// A payload that is not JSON, or large, is changed by a command.
export const isEditable = (job) =>
  job.payload_base64 === undefined && job.content_type === "application/json" && job.payload_bytes <= EDITED_MAX;

// What the form changes, as the body of PATCH. Raises an error that begins with a field's name.
function changesOf(job, { payload, priority, expires, labels, text }, first) {
  const body = {};
  if (payload !== first) {
    try {
      body.payload = parseJson(payload);
    } catch (error) {
      throw new Error(`payload: not JSON: ${error.message}`);
    }
  }
  if (priority !== "" && Number(priority) !== job.priority) body.priority = Number(priority);
  if (expires) body.expires = expires;
  const added = Object.entries(pairsOf(labels)).filter(([name, value]) => job.labels?.[name] !== value);
  if (added.length > 0) body.labels = Object.fromEntries(added);
  if (text && Object.keys(body).length > 0) body.text = text;
  return body;
}

// The job as the difference shows it.
const shownOf = (job, body = {}) => {
  const labels = { ...job.labels, ...body.labels };
  return {
    payload: "payload" in body ? body.payload : job.payload,
    priority: body.priority ?? job.priority,
    ...(body.expires && { expires: `${body.expires} from now` }),
    labels,
  };
};

function commandOf(job, { payload, priority, expires, labels = {} }) {
  const given = flags({ payload: payload === undefined ? undefined : stringifyJson(payload), priority, expires });
  const labelled = Object.entries(labels).map(([name, value]) => flags({ label: `${name}=${value}` }));
  return `holdfast job edit ${job.id}${given}${labelled.join("")}`;
}

// The form is about the job as it was when it opened: what others change meanwhile is not changed back.
export function EditDialog({ job: latest, onClose, onDone }) {
  const [job] = useState(latest);
  const form = useId();
  const editable = isEditable(job);
  const first = useMemo(() => (editable ? stringifyJson(job.payload, 2) : ""), []);
  const [values, setValues] = useState({ payload: first, priority: job.priority, expires: "", labels: "", text: "" });
  const [retry, setRetry] = useState(job.state === "dead");
  const set = (name) => (value) => setValues({ ...values, [name]: value });
  const { body, fault } = useMemo(() => {
    try {
      return { body: changesOf(job, values, first), fault: null };
    } catch (error) {
      return { body: {}, fault: error };
    }
  }, [values]);
  const saving = useAction(async () => {
    if (Object.keys(body).length > 0) await patch(v1`jobs/${job.id}`, body);
    if (retry) await post(v1`jobs/${job.id}/retry`, values.text ? { text: values.text } : {});
  }, { quiet: true });
  const changes = Object.keys(body).length > 0;
  const submit = async () => {
    if (fault || (await saving.run()) === undefined) return;
    showToast(retry ? "The job was edited and put back." : "The job was edited.");
    onClose();
    onDone();
  };
  const error = fault ?? saving.error;
  const label = retry ? (changes ? "Save and put back" : "Put back unchanged") : "Save";
  const footer = html`<button class="button" onClick=${onClose}>Keep as is</button>
    <button
      form=${form}
      class="button button-primary"
      disabled=${saving.busy || Boolean(fault) || (!changes && !retry)}
    >${label}</button>`;
  return html`<${Dialog} wide title="Edit this job" onClose=${onClose} footer=${footer}>
    <div class="edit-columns">
      <${Form} id=${form} error=${error} fields=${["payload", "labels", "priority", "expires"]} onSubmit=${submit}>
        ${editable
          ? html`<${Field}
            label="Payload"
            type="textarea"
            rows=${Math.min(16, Math.max(5, first.split("\n").length + 1))}
            spellcheck=${false}
            value=${values.payload}
            onInput=${set("payload")}
            error=${errorOf(error, "payload")}
          />`
          : html`<p class="hint">
              The payload (${job.content_type}, ${bytes(job.payload_bytes)}) is not edited here:
              use <code>holdfast job edit ${job.id} --payload</code>.
            </p>`}
        <div class="columns">
          <${Field}
            label="Priority"
            type="number"
            min=${-100}
            max=${100}
            value=${values.priority}
            onInput=${set("priority")}
            error=${errorOf(error, "priority")}
          />
          <${Field}
            label="Give up after"
            ...${DURATION}
            placeholder="1h"
            hint="If it has not started this long from now. Empty: as it is."
            value=${values.expires}
            onInput=${set("expires")}
            error=${errorOf(error, "expires")}
          />
        </div>
        <${Field}
          label="Labels to set"
          type="textarea"
          rows=${2}
          placeholder="region=eu"
          hint="One NAME=VALUE per line."
          value=${values.labels}
          onInput=${set("labels")}
          error=${errorOf(error, "labels")}
        />
        <${Field}
          label="Reason"
          hint="Shown in the timeline and in the audit log."
          value=${values.text}
          onInput=${set("text")}
        />
        ${job.state === "dead" && html`<${Field}
          type="checkbox"
          label="Put it back afterwards"
          value=${retry}
          onInput=${setRetry}
        />`}
      </${Form}>
      <div class="edit-changes">
        <h3>What changes</h3>
        <${Diff}
          before=${shownOf(editable ? job : { ...job, payload: "…" })}
          after=${shownOf(editable ? job : { ...job, payload: "…" }, body)}
        />
      </div>
    </div>
    ${changes &&
    html`<${CopyCall} method="PATCH" path=${v1`jobs/${job.id}`} body=${body} command=${commandOf(job, body)} />`}
  </${Dialog}>`;
}
