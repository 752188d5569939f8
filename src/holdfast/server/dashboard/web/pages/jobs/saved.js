// Filters that this browser keeps by name.
import { html, useState } from "../../lib/html.js";
import { usePref } from "../../lib/prefs.js";
import { go } from "../../lib/router.js";
import { Field } from "../../parts/form.js";
import { Icon } from "../../parts/icon.js";
import { Menu, MenuItem } from "../../parts/menu.js";
import { Text } from "../../parts/text.js";
import { filtersOf, inWords, queryOf } from "./filter.js";

const NAME_MAX = 60;
const SAVED_MAX = 50;

// What people look for most; they show how filters are written, too.
const IDEAS = [
  { name: "Died in the last hour", query: { state: ["dead"], since: "1h" } },
  { name: "Waiting after a failure", query: { state: ["failed"] } },
  { name: "Running now", query: { state: ["leased"] } },
  { name: "Due later", query: { state: ["scheduled"] } },
];

// Only entries of the expected shape count: the storage of a browser can hold anything.
const readable = (saved) =>
  (Array.isArray(saved) ? saved : []).filter(
    (each) => typeof each?.name === "string" && each.query !== null && typeof each.query === "object",
  );

export function SavedFilters({ filters }) {
  const [stored, store] = usePref("jobs-saved", []);
  const saved = readable(stored);
  const [name, setName] = useState("");
  const save = (event, close) => {
    event.preventDefault();
    const named = name.trim().slice(0, NAME_MAX);
    if (!named) return;
    const others = saved.filter((each) => each.name !== named);
    store([...others, { name: named, query: queryOf(filters) }].slice(-SAVED_MAX));
    setName("");
    close();
  };
  const open = (query, close) => {
    close();
    go("/jobs", queryOf(filtersOf(query)));
  };
  return html`<${Menu} label="Saved" end>
    ${(close) => html`<ul class="saved">
        ${saved.map(
          (each) => html`<li key=${each.name}>
            <${MenuItem} onClick=${() => open(each.query, close)}>
              <${Text} value=${each.name} /><span class="hint">${inWords(filtersOf(each.query)).slice(0, 80)}</span>
            </${MenuItem}>
            <button
              class="button button-quiet"
              aria-label=${`Forget the filter ${each.name}`}
              onClick=${() => store(saved.filter((other) => other !== each))}
            ><${Icon} name="close" /></button>
          </li>`,
        )}
        ${saved.length === 0 &&
        IDEAS.map(
          (each) => html`<li key=${each.name}>
            <${MenuItem} onClick=${() => open(each.query, close)}>
              ${each.name}<span class="hint">${inWords(filtersOf(each.query))}</span>
            </${MenuItem}>
          </li>`,
        )}
      </ul>
      ${filters.length > 0
        ? html`<form class="save-filter" onSubmit=${(event) => save(event, close)}>
            <${Field}
              label="Save this filter as"
              value=${name}
              onInput=${setName}
              maxlength=${NAME_MAX}
              autocomplete="off"
            />
            <button class="button" disabled=${!name.trim()}>Save</button>
          </form>`
        : html`<p class="hint">Filter the jobs, then save the filter here by a name.</p>`}`}
  </${Menu}>`;
}
