// Completion of filters: names of fields, then values that the store knows.
import { get } from "../../lib/api.js";
import { html, useEffect, useMemo, useRef, useState } from "../../lib/html.js";
import { route } from "../../lib/router.js";
import { queueToName } from "../../lib/session.js";
import { Chips } from "../../parts/chips.js";
import { FIELDS, parsed } from "./filter.js";

const KEPT_MS = 30_000;
const SHOWN_MAX = 40;
const LENGTH_MAX = 200;

const loaders = {
  __proto__: null,
  queue: async () => (await get("v1/queues")).queues.map(({ name }) => name),
  ...Object.fromEntries(
    Object.keys(FIELDS)
      .filter((name) => FIELDS[name].tally)
      .map((by) => [
        by,
        async () => {
          const { tallies } = await get("v1/tally", { by, limit: 100, ...queueToName(route.get().query.queue) });
          return tallies.map(({ value }) => value);
        },
      ]),
  ),
};

// The known values of a field, loaded when it is first asked for: (name) => texts
function useKnownValues(rows) {
  const [known, setKnown] = useState({});
  const asked = useRef({});
  const ofRows = useMemo(
    () => ({
      key: rows.map((row) => row.key),
      label: rows.flatMap((row) =>
        Object.entries(row.labels).slice(0, 10).map(([name, value]) => `${name}=${value}`),
      ),
    }),
    [rows],
  );
  const ask = (name) => {
    if (!(name in loaders) || Date.now() - (asked.current[name] ?? 0) < KEPT_MS) return;
    asked.current[name] = Date.now();
    loaders[name]().then(
      (values) => setKnown((before) => ({ ...before, [name]: values })),
      () => {}, // without an answer nothing is suggested
    );
  };
  const valuesOf = (name) => FIELDS[name]?.values ?? known[name] ?? ofRows[name] ?? [];
  return { ask, valuesOf };
}

function suggestions(text, valuesOf) {
  const [, name, begun] = /^([a-z]+):(.*)$/s.exec(text) ?? [];
  if (!(name in FIELDS)) {
    const names = Object.keys(FIELDS).filter((each) => each.startsWith(text));
    return text.includes(":") ? [] : names.map((each) => `${each}:`);
  }
  const wanted = begun.toLowerCase();
  const found = valuesOf(name).filter((value) => value && String(value).length <= LENGTH_MAX);
  return [...new Set(found)]
    .filter((value) => value.toLowerCase().includes(wanted))
    .slice(0, SHOWN_MAX)
    .map((value) => `${name}:${value}`);
}

// The field with the filters as chips.
export function FilterField({ filters, rows, onAdd, onRemove, inputRef }) {
  const { ask, valuesOf } = useKnownValues(rows);
  const [hint, setHint] = useState("");
  const field = useRef(null);
  const suggest = (text) => {
    const [, name] = /^([a-z]+):/.exec(text) ?? [];
    if (name) queueMicrotask(() => ask(name));
    return suggestions(text, valuesOf);
  };
  const add = (text) => {
    const filter = parsed(text);
    const [, name] = /^([a-z]+):/.exec(text) ?? [];
    setHint(filter || !name ? "" : `${name}: ${FIELDS[name].help}`);
    if (filter === null) return false;
    onAdd(filter);
    return true;
  };
  useEffect(() => setHint(""), [filters]);
  useEffect(() => {
    if (inputRef) inputRef.current = field.current;
  });
  return html`<div class="filter-field">
    <${Chips}
      label="Filter the jobs"
      filters=${filters}
      onRemove=${onRemove}
      onAdd=${add}
      suggest=${suggest}
      placeholder=${filters.length ? "Add a filter" : "Filter: queue:mail, label:region=eu, or any text"}
      inputRef=${field}
    />
    ${hint && html`<p class="hint" role="status">${hint}</p>`}
  </div>`;
}
