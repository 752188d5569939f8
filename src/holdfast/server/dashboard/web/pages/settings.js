// Settings: every stored setting with its meaning, value and default.
import { post, put, v1 } from "../lib/api.js";
import { count } from "../lib/format.js";
import { html, useMemo, useRef, useState } from "../lib/html.js";
import { useKey } from "../lib/keyboard.js";
import { useAction } from "../lib/resource.js";
import { changeQuery } from "../lib/router.js";
import { useMay } from "../lib/session.js";
import { ActButton } from "../parts/act.js";
import { Dialog } from "../parts/dialog.js";
import { Field, Form } from "../parts/form.js";
import { Icon } from "../parts/icon.js";
import { AsOf, ListBody, useList, useReload } from "../parts/listing.js";
import { PageHead } from "../parts/shell.js";
import { Empty } from "../parts/states.js";
import { Table } from "../parts/table.js";
import { Text } from "../parts/text.js";

// Settings that begin alike are about the same thing; the others by what reads them.
const GROUPS = [
  ["Alerts", ({ name }) => name.startsWith("alert-")],
  ["Workers", ({ name }) => name.startsWith("worker-")],
  ["History and upkeep", ({ used_by: by }) => by === "upkeep" || by === "cleanup"],
  ["New jobs", ({ used_by: by }) => by === "enqueue"],
];
const TITLES = ["New jobs", "Workers", "Alerts", "History and upkeep", "Server"];
const titleOf = (row) => GROUPS.find(([, test]) => test(row))?.[0] ?? "Server";

const COLUMNS = [
  {
    key: "name",
    title: "Setting",
    cell: (row) => html`<span class="row-name"><code><${Text} value=${row.name} /></code></span>
      <span class="hint does"><${Text} value=${row.does} /></span>`,
  },
  { key: "value", title: "Value", cell: (row) => html`<${CurrentValue} row=${row} />` },
  {
    key: "default",
    title: "Default",
    from: "medium",
    cell: (row) => (row.default === null ? html`<span class="zero">none</span>` : html`<code class="zero"><${Text} value=${row.default} max=${120} /></code>`),
  },
  { key: "used", title: "Read by", from: "wide", cell: (row) => html`<span class="zero"><${Text} value=${row.used_by} max=${120} /></span>` },
  { key: "acts", title: html`<span class="sr-only">Acts</span>`, cell: (row) => html`<${Acts} row=${row} />` },
];

function CurrentValue({ row }) {
  const { value, source } = row;
  const text = value === null ? html`<span class="zero">not set</span>` : html`<code><${Text} value=${value} max=${120} /></code>`;
  if (source === "default") return html`<span class="zero">${text}</span>`;
  const title = source === "environment" ? `${row.variable} of the server's environment` : "Stored for everyone who uses this store";
  return html`<span class="facts-line"><strong>${text}</strong><span class=${source === "environment" ? "badge badge-warn" : "badge badge-accent"} title=${title}>${source}</span></span>`;
}

function Acts({ row }) {
  const may = useMay();
  const [edits, setEdits] = useState(false);
  if (!may.act("operate")) return null;
  return html`<span class="row-acts">
    <button class="button button-quiet" aria-label=${`Edit ${row.name}`} onClick=${() => setEdits(true)}>Edit</button>
    ${row.source === "stored" && html`<span class="from-medium"><${UnsetButton} row=${row} /></span>`}
    ${edits && html`<${SettingForm} row=${row} onClose=${() => setEdits(false)} />`}
  </span>`;
}

const UnsetButton = ({ row, style, after }) => html`<${ActButton}
  label="Unset"
  name=${row.name}
  style=${style}
  act=${() => post(v1`config/${row.name}/unset`)}
  done=${({ value }) => `Unset ${row.name}: ${value === null ? "it has no default" : `${value}, its default, applies`}`}
  after=${after}
/>`;

function SettingForm({ row, onClose }) {
  const reload = useReload();
  const [value, setValue] = useState(row.value ?? "");
  const saving = useAction(() => put(v1`config/${row.name}`, { value: value.trim() }), {
    done: `Stored ${row.name} = ${value.trim()}`,
    quiet: true,
  });
  const submit = async () => {
    if ((await saving.run()) === undefined) return;
    reload();
    onClose();
  };
  const same = value.trim() === (row.value ?? "") && row.source === "stored";
  return html`<${Dialog} title=${row.name} onClose=${onClose} footer="">
    <p><${Text} value=${row.does} /> <span class="hint">Read by: ${row.used_by}.</span></p>
    ${row.source === "stored" && html`<p class="narrow-only"><${UnsetButton} row=${row} style="" after=${onClose} /></p>`}
    ${row.source === "environment" &&
    html`<div class="notice notice-warn"><${Icon} name="warn" /><div class="notice-text">
      <strong><code>${row.variable}</code> is set in the server's environment.</strong>
      <p>It takes precedence over what is stored here, on that machine.</p>
    </div></div>`}
    <${Form} submit="Store for everyone" busy=${saving.busy || same || !value.trim()} onSubmit=${submit} onCancel=${onClose}>
      <${Field}
        label="Value"
        value=${value}
        onInput=${setValue}
        error=${saving.error?.message}
        hint=${row.default === null ? "By default it is not set." : `The default is ${row.default}.`}
        autocomplete="off"
        spellcheck=${false}
        maxlength="2000"
        class="code"
      />
    </${Form}>
  </${Dialog}>`;
}

const matches = ({ name, does, value }, wanted) => `${name} ${does} ${value ?? ""}`.toLowerCase().includes(wanted);

export default function Settings({ query }) {
  const list = useList("v1/config", "settings", (row) => row.name, { every: 3_000 });
  const field = useRef(null);
  const search = query.q ?? "";
  useKey("/", "Search the settings", () => field.current?.focus());
  const found = useMemo(() => (list.rows ?? []).filter((row) => matches(row, search.toLowerCase())), [list.rows, search]);
  const groups = useMemo(() => {
    const byTitle = Map.groupBy(found, titleOf);
    return TITLES.filter((title) => byTitle.has(title)).map((title) => ({
      key: title,
      rows: byTitle.get(title),
      head: html`<span class="group-title">${title} <span class="hint">${count(byTitle.get(title).length)}</span></span>`,
    }));
  }, [found]);
  return html`<${PageHead} title="Settings"><${AsOf} list=${list} /></${PageHead}>
    <${ListBody} list=${list} what="settings">
      <section class="panel" aria-labelledby="settings-title">
        <div class="panel-head">
          <h2 id="settings-title">Stored with the jobs, for every process that uses this store</h2>
          <label class="search">
            <${Icon} name="search" /><span class="sr-only">Search the settings</span>
            <input
              type="search"
              ref=${field}
              value=${search}
              placeholder="Search"
              onInput=${(event) => changeQuery({ q: event.target.value })}
            /><kbd>/</kbd>
          </label>
        </div>
        <${Table}
          caption="Settings with their meaning, value and default"
          columns=${COLUMNS}
          rows=${found}
          groups=${groups}
          keyOf=${(row) => row.name}
          empty=${html`<${Empty} title=${`No setting matches “${search}”`} />`}
        />
      </section>
    </${ListBody}>`;
}
