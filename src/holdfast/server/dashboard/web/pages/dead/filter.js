// The filter of dead letters: in the address, as chips, in words, and as the API takes it.
import { visible } from "../../lib/format.js";

const NAMES = ["queue", "task", "tenant", "worker", "reason", "fingerprint", "key", "group", "since", "before", "search"];

export const REASONS = {
  attempts: "all attempts failed",
  expired: "it did not start in time",
  crashed: "it crashed its process",
  rejected: "no task accepts it",
  explicit: "it was declared dead",
  dependency: "a job that it waited for died",
};

const first = (value) => (Array.isArray(value) ? value[0] : value);

// The filter of an address: {queue, …, label: ["name=value"]}, without what is empty.
export function readFilter(query) {
  const found = {};
  for (const name of NAMES) if (query[name]) found[name] = first(query[name]);
  const labels = [query.label ?? []].flat().filter(Boolean);
  if (labels.length > 0) found.label = labels;
  return found;
}

// [[name, value]], one for each chip.
export const chipsOf = (filter) =>
  Object.entries(filter).flatMap(([name, value]) => [value].flat().map((each) => [name, each]));

export const isEmpty = (filter) => Object.keys(filter).length === 0;

// The filter for the body of a call: {filter} or {all: true}.
export function bodyOf(filter) {
  if (isEmpty(filter)) return { all: true };
  const { label, ...rest } = filter;
  if (!label) return { filter: rest };
  const labels = Object.fromEntries(label.map((pair) => pair.split(/=(.*)/s).slice(0, 2)));
  return { filter: { ...rest, labels } };
}

const short = (value) => {
  const text = visible(value);
  return text.length > 60 ? `${text.slice(0, 60)}…` : text;
};

// "of queue mail, tenant acme" · "of all queues"
export function wordsOf(filter) {
  const parts = [];
  for (const name of ["queue", "task", "tenant", "worker", "reason", "key", "group"]) {
    if (filter[name]) parts.push(`${name} ${short(filter[name])}`);
  }
  if (filter.fingerprint) parts.push(`cause ${short(filter.fingerprint)}`);
  for (const pair of [filter.label ?? []].flat()) parts.push(`label ${short(pair)}`);
  for (const [name, value] of Object.entries(filter.labels ?? {})) parts.push(`label ${short(`${name}=${value}`)}`);
  if (filter.since) parts.push(`created since ${filter.since}`);
  if (filter.before) parts.push(`created before ${filter.before}`);
  if (filter.search) parts.push(`with “${short(filter.search)}”`);
  if (filter.ids?.length === 1) parts.push(`job ${filter.ids[0]}`);
  else if (filter.ids?.length) parts.push(`${filter.ids.length} chosen jobs`);
  return parts.length ? `of ${parts.join(", ")}` : "of all queues";
}

// "queue:mail" → {queue: "mail"}; text without a known name is searched for.
export function parseChip(text) {
  const [, name, value] = /^([a-z]+):(.*)$/s.exec(text) ?? [];
  if (name === "label" && value.includes("=")) return { label: value };
  return NAMES.includes(name) && value.trim() ? { [name]: value.trim() } : { search: text };
}

// Completions of what was typed: names of filters, then values that the groups have.
export function suggestFor(groups) {
  const known = { reason: Object.keys(REASONS), since: ["1h", "24h", "7d"], before: ["1h", "24h", "7d"] };
  const plurals = { queue: "queues", task: "tasks", tenant: "tenants", worker: "workers" };
  for (const [name, many] of Object.entries(plurals)) {
    known[name] = [...new Set(groups.flatMap((group) => Object.keys(group[many])))];
  }
  const values = Object.entries(known).flatMap(([name, found]) => found.map((value) => `${name}:${value}`));
  const all = [...NAMES.map((name) => `${name}:`), "label:", ...values];
  return (text) => all.filter((each) => text && each.startsWith(text) && each !== text).slice(0, 20);
}
