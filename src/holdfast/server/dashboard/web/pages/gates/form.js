// Adds or edits a gate.
import { get, put, v1 } from "../../lib/api.js";
import { html, useId, useState } from "../../lib/html.js";
import { useAction, useResource } from "../../lib/resource.js";
import { Dialog } from "../../parts/dialog.js";
import { Field, Form, errorOf } from "../../parts/form.js";
import { useReload } from "../../parts/listing.js";
import { Choices } from "../../parts/tabs.js";

const DIRECTIONS = [["inlet", "Inlet: messages to jobs"], ["outlet", "Outlet: jobs to messages"]];
const NEW = {
  ...{ name: "", direction: "inlet", broker: "main", queue: "default", prefetch: 500 },
  ...{ source: "", task: "", tenant: "", group: "", key: "", content_type: "", dead: false },
  ...{ exchange: "", routing_key: "" },
};
const FIELDS = Object.keys(NEW);
const OF_INLETS = ["source", "task", "content_type", "dead"];
const OF_OUTLETS = ["exchange", "routing_key"];

function bodyOf(values) {
  const { direction, broker, queue } = values;
  const body = { direction, broker: broker.trim(), queue: queue.trim(), prefetch: Number(values.prefetch) };
  for (const name of direction === "inlet" ? OF_INLETS : OF_OUTLETS) body[name] = values[name];
  if (direction === "inlet") for (const name of ["tenant", "group", "key"]) body[name] = values[name] || null;
  return body;
}

export function GateForm({ old = null, onClose }) {
  const reload = useReload();
  const [values, setValues] = useState(() =>
    Object.fromEntries(FIELDS.map((name) => [name, old ? (old[name] ?? "") : NEW[name]])),
  );
  const set = (name) => (value) => setValues((all) => ({ ...all, [name]: value }));
  const saving = useAction(() => put(v1`gates/${values.name.trim()}`, bodyOf(values)), {
    done: `${old ? "Changed" : "Added"} ${values.name.trim()}`,
    quiet: true,
  });
  const { error } = saving;
  const submit = async () => {
    if ((await saving.run()) === undefined) return;
    reload();
    onClose();
  };
  const field = (name, label, more = {}) => html`<${Field}
    label=${label}
    value=${values[name]}
    onInput=${set(name)}
    error=${errorOf(error, name)}
    autocomplete="off"
    ...${more}
  />`;
  const prefetch = field("prefetch", "At most in flight in each process", { type: "number", min: 1 });
  const isInlet = values.direction === "inlet";
  return html`<${Dialog} title=${old ? `Edit ${old.name}` : "Add a gate"} onClose=${onClose} footer="" wide>
    <${Form} submit=${old ? "Save the changes" : "Add the gate"} busy=${saving.busy} error=${error} fields=${FIELDS} onSubmit=${submit} onCancel=${onClose}>
      ${!old && html`<${Choices} label="Direction" choices=${DIRECTIONS} chosen=${values.direction} onChoose=${set("direction")} />`}
      <div class="fields">
        ${!old && field("name", "Name", { placeholder: "orders", required: true })}
        ${field("broker", "Broker", { required: true, hint: `A name: processes with HOLDFAST_BROKER_${values.broker.toUpperCase().replace(/[^A-Z0-9]/g, "_") || "…"} run it.` })}
        <${QueueField} label=${isInlet ? "Into the queue" : "From the queue"} value=${values.queue} onInput=${set("queue")} error=${errorOf(error, "queue")} />
      </div>
      ${isInlet
        ? html`<div class="fields">
              ${field("source", "Queue at the broker", { placeholder: "orders.new", required: true })}
              ${field("task", "Task", { placeholder: "{header.kind|send}", required: true, class: "code" })}
            </div>
            <div class="fields">
              ${field("tenant", "Tenant", { placeholder: "none", class: "code" })}
              ${field("group", "Group", { placeholder: "none", class: "code" })}
              ${field("key", "Once-only key", { placeholder: "from the message id", class: "code" })}
            </div>
            <p class="hint">
              Task, tenant, group and key are templates: <code>{header.NAME}</code>, <code>{message_id}</code>${" "}
              and others are replaced.
            </p>
            <div class="fields">
              ${field("content_type", "Content type", { placeholder: "of messages without one" })}
              ${prefetch}
            </div>
            ${field("dead", "The source is a dead-letter queue: keep its messages as dead letters", { type: "checkbox" })}`
        : html`<div class="fields">
            ${field("exchange", "Exchange", { placeholder: "none", hint: "Without one, the routing key names the queue." })}
            ${field("routing_key", "Routing key", { placeholder: "{task}", class: "code" })}
            ${prefetch}
          </div>`}
    </${Form}>
  </${Dialog}>`;
}

function QueueField(properties) {
  const id = useId();
  const { data } = useResource((signal) => get("v1/queues", {}, { signal }), []);
  return html`<${Field} list=${id} autocomplete="off" required ...${properties} />
    <datalist id=${id}>${(data?.queues ?? []).slice(0, 500).map(({ name }) => html`<option value=${name} />`)}</datalist>`;
}
