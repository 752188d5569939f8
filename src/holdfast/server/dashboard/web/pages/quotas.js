// Quotas: what the namespace and its tenants may enqueue over HTTP.
import { del, put, v1 } from "../lib/api.js";
import { count, plural } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { useAction } from "../lib/resource.js";
import { useMay } from "../lib/session.js";
import { ActButton } from "../parts/act.js";
import { Dialog } from "../parts/dialog.js";
import { Field, Form, errorOf } from "../parts/form.js";
import { AsOf, ListBody, useList, useReload } from "../parts/listing.js";
import { PageHead } from "../parts/shell.js";
import { Empty } from "../parts/states.js";
import { Table } from "../parts/table.js";
import { Text } from "../parts/text.js";

const EACH = "tenant:*";
const PREFIX = "tenant:";

function Owner({ whose }) {
  if (whose === "namespace") return html`<span class="row-name">The whole namespace</span>`;
  if (whose === EACH) return html`<span class="row-name">Each tenant without its own</span>`;
  const name = whose.startsWith(PREFIX) ? whose.slice(PREFIX.length) : whose;
  return html`<span class="row-name"><${Text} value=${name} max=${120} /></span> <span class="badge">tenant</span>`;
}

// All bounds in one line, where there is no room for the columns.
function Summary({ row: { depth, rate, bytes } }) {
  const parts = [depth !== null && `${count(depth)} unfinished`, rate && rateText(rate), bytes && bytesText(bytes)];
  return html`<span class="narrow-only hint">${parts.filter(Boolean).join(" · ") || "no bound"}</span>`;
}

const none = html`<span class="zero" title="No bound">no bound</span>`;

const COLUMNS = [
  { key: "whose", title: "Whose", sort: (row) => row.whose, cell: (row) => html`<${Owner} whose=${row.whose} /><${Summary} row=${row} />` },
  {
    key: "depth",
    title: "Unfinished jobs",
    help: "New jobs are refused while this many have not ended",
    number: true,
    from: "medium",
    sort: (row) => row.depth,
    cell: (row) => (row.depth === null ? none : count(row.depth)),
  },
  { key: "rate", title: "New jobs", number: true, from: "medium", cell: (row) => (row.rate === null ? none : html`<${Text} value=${rateText(row.rate)} max=${60} />`) },
  { key: "bytes", title: "Payload", number: true, from: "medium", cell: (row) => (row.bytes === null ? none : html`<${Text} value=${bytesText(row.bytes)} max=${60} />`) },
  { key: "acts", title: html`<span class="sr-only">Acts</span>`, cell: (row) => html`<${Acts} row=${row} />` },
];

const PERIODS = { s: "second", m: "minute", h: "hour", d: "day" };

// "5000/h" → "5,000 per hour"
function rateText(text) {
  const [, size, per] = /^(\d+)\/(.+)$/s.exec(text) ?? [];
  return size ? `${count(size)} per ${PERIODS[per] ?? per}` : text;
}

const SIZES = [[10 ** 9, "GB"], [10 ** 6, "MB"], [10 ** 3, "kB"]];

// "10000000/m" → "10 MB per minute"; sizes of quotas are decimal.
function bytesText(text) {
  const [, size, per] = /^(\d+)\/(.+)$/s.exec(text) ?? [];
  const [unit, name] = SIZES.find(([each]) => size >= each) ?? [1, "bytes"];
  return size ? `${(size / unit).toLocaleString("en")} ${name} per ${PERIODS[per] ?? per}` : text;
}

function Acts({ row }) {
  const may = useMay();
  const [edits, setEdits] = useState(false);
  if (!may.act("admin")) return null;
  return html`<span class="row-acts">
    <button class="button button-quiet" aria-label=${`Edit the quota of ${row.whose}`} onClick=${() => setEdits(true)}>Edit</button>
    <${ActButton}
      label="Remove…"
      name=${row.whose}
      act=${() => del(v1`quotas/${row.whose}`)}
      ask=${{ title: `Remove the quota of ${row.whose}?`, text: "It then has no bound of its own.", label: "Remove the quota", danger: true }}
      done=${`Removed the quota of ${row.whose}`}
    />
    ${edits && html`<${QuotaForm} old=${row} onClose=${() => setEdits(false)} />`}
  </span>`;
}

const OWNERS = [
  ["namespace", "the whole namespace"],
  [EACH, "each tenant without its own"],
  [PREFIX, "one tenant"],
];

function QuotaForm({ old = null, onClose }) {
  const reload = useReload();
  const [owner, setOwner] = useState("namespace");
  const [tenant, setTenant] = useState("");
  const [values, setValues] = useState({ depth: old?.depth ?? "", rate: old?.rate ?? "", bytes: old?.bytes ?? "" });
  const whose = old?.whose ?? (owner === PREFIX ? PREFIX + tenant : owner);
  const saving = useAction(
    () => {
      const depth = String(values.depth).trim();
      return put(v1`quotas/${whose}`, {
        depth: depth === "" ? null : Number(depth),
        rate: values.rate.trim() || null,
        bytes: values.bytes.trim() || null,
      });
    },
    { done: `Set the quota of ${whose}`, quiet: true },
  );
  const submit = async () => {
    if ((await saving.run()) === undefined) return;
    reload();
    onClose();
  };
  const field = (name, label, hint, more = {}) => html`<${Field}
    label=${label}
    hint=${hint}
    value=${values[name]}
    onInput=${(value) => setValues((all) => ({ ...all, [name]: value }))}
    error=${errorOf(saving.error, name)}
    placeholder="no bound"
    autocomplete="off"
    ...${more}
  />`;
  return html`<${Dialog} title=${old ? `Quota of ${old.whose}` : "Set a quota"} onClose=${onClose} footer="">
    <${Form} submit="Set the quota" busy=${saving.busy} error=${saving.error} fields=${["depth", "rate", "bytes"]} onSubmit=${submit} onCancel=${onClose}>
      ${!old && html`<${Field} label="Whose" type="select" options=${OWNERS} value=${owner} onInput=${setOwner} />`}
      ${!old && owner === PREFIX && html`<${Field} label="Tenant" value=${tenant} onInput=${setTenant} required autocomplete="off" />`}
      ${field("depth", "Unfinished jobs", "Refuse new jobs while this many have not ended.", { type: "number", min: 0, max: 99_999 })}
      ${field("rate", "New jobs", "For example 100/s or 5000/h.")}
      ${field("bytes", "Payload", "For example 10MB/m or 1GB/d.")}
    </${Form}>
  </${Dialog}>`;
}

export default function Quotas() {
  const list = useList("v1/quotas", "quotas", (row) => row.whose);
  const [adds, setAdds] = useState(false);
  const may = useMay();
  return html`<${PageHead} title="Quotas">
      <${AsOf} list=${list} />
      ${may.act("admin") && html`<button class="button button-primary" onClick=${() => setAdds(true)}>Set a quota</button>`}
    </${PageHead}>
    <${ListBody} list=${list} what="quotas">
      <section class="panel" aria-label="Quotas">
        ${list.rows?.length > 0 &&
        html`<div class="panel-head">
          <h2>${plural(list.rows?.length, "quota")}</h2>
          <p class="hint">What may be enqueued over HTTP</p>
        </div>`}
        <${Table}
          caption="Quotas of the namespace and its tenants"
          columns=${COLUMNS}
          rows=${list.rows ?? []}
          keyOf=${(row) => row.whose}
          order=${["whose", "asc"]}
          empty=${html`<${Empty} title="No quotas: nothing is bounded" command="holdfast quota set 'tenant:*' --depth 1000 --rate 100/s">
            A quota bounds what the namespace, or a tenant, may enqueue over HTTP, so that one of them cannot
            fill the store.
          </${Empty}>`}
        />
      </section>
      ${adds && html`<${QuotaForm} onClose=${() => setAdds(false)} />`}
    </${ListBody}>`;
}
