// The filters of the jobs page. Their names are those of GET /v1/jobs, and of the page's address.
import { flags } from "../../lib/shell.js";

// The stored states, which have a tab each; a waiting job is also one of the other words.
export const STATES = ["waiting", "leased", "done", "dead", "cancelled"];
const WAITING = ["pending", "scheduled", "failed"];
const REASONS = ["attempts", "expired", "crashed", "rejected", "explicit", "dependency"];
const AGES = ["15m", "1h", "6h", "24h", "7d"];

// `many`: any number of them; `values`: known beforehand; `tally`: GET /v1/tally knows the values.
// Without a prototype: what is typed may be the name of one of its members.
export const FIELDS = {
  __proto__: null,
  state: { many: true, values: [...STATES, ...WAITING], help: "waiting, leased, done, dead, …" },
  queue: { help: "name of the queue" },
  task: { tally: true, help: "name of the task" },
  tenant: { tally: true, help: "name of the tenant" },
  label: { many: true, help: "NAME=VALUE" },
  key: { help: "the job's key" },
  group: { tally: true, help: "the job's group" },
  worker: { tally: true, help: "worker that leased it last" },
  reason: { values: REASONS, help: "why a job died" },
  fingerprint: { tally: true, help: "dead letters of one kind" },
  parent: { help: "jobs that depend on this id" },
  since: { values: AGES, help: "created since an age or time: 1h" },
  before: { values: AGES, help: "created before an age or time: 1h" },
  search: { help: "text in id, task, key or tenant" },
  contains: { help: "text in payload or error" },
};

// The filters of an address as [[name, value]].
export const filtersOf = (query) =>
  Object.keys(FIELDS).flatMap((name) =>
    [query[name] ?? []].flat().map((value) => [name, String(value)]),
  );

// The filters as the query of a call or an address.
export function queryOf(filters) {
  const query = {};
  for (const [name, value] of filters) {
    if (FIELDS[name].many) query[name] = [...(query[name] ?? []), value];
    else query[name] = value;
  }
  return query;
}

// The filters with one more; a name that is not repeated is replaced.
export function added(filters, [name, value]) {
  const same = ([other, known]) => other === name && (!FIELDS[name].many || known === value);
  return [...filters.filter((each) => !same(each)), [name, value]];
}

const unquoted = (text) => /^"(.*)"$/s.exec(text)?.[1] ?? text;

// "queue:mail" as [name, value]; other text is searched for. null if the value is missing.
export function parsed(text) {
  const [, name, rest] = /^([a-z]+)\s*:\s*(.*)$/s.exec(text) ?? [];
  if (!name || !(name in FIELDS)) return ["search", unquoted(text)];
  const value = unquoted(rest.trim());
  if (!value || (name === "label" && !/^[^=]+=/.test(value))) return null;
  return [name, value];
}

// The filter in words, for the title of a saved one: "dead in mail, tenant acme"
export const inWords = (filters) =>
  filters.map(([name, value]) => (name === "state" ? value : `${name} ${value}`)).join(", ") || "all jobs";

// The command that lists the same jobs; undefined if it cannot.
export function asCommand(filters) {
  if (filters.some(([name]) => name === "contains")) return undefined;
  return `holdfast job list${filters.map(([name, value]) => flags({ [name]: value })).join("")}`;
}
