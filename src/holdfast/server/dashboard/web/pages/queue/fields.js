// Every setting of a queue: its field, what it does, and its value for the API.
import { backoffText, msText, numberOf } from "./texts.js";

const DURATION = "Expected a duration such as 30s, 5m, 2h or 1d";

const duration = (name, title, hint, more) => ({
  name,
  title,
  hint,
  aliases: [`${name}_ms`],
  instead: DURATION,
  read: (queue) => msText(queue[`${name}_ms`]),
  value: (text) => text.trim() || null,
  ...more,
});
const number = (name, title, hint, more) => ({
  name,
  title,
  hint,
  inputmode: "numeric",
  read: (queue) => String(queue[name] ?? ""),
  value: numberOf,
  ...more,
});
const text = (name, title, hint, more) => ({
  name,
  title,
  hint,
  read: (queue) => queue[name] ?? "",
  value: (given) => given.trim() || null,
  ...more,
});

export const weightsText = (rows) =>
  rows.filter(([tenant]) => tenant).map(([tenant, weight]) => `${tenant}=${weight}`).join(", ");

// `read` gives what the form shows, `value` what the API gets; `trait` is the ability of the engine
// that the setting needs, `empty` the words for no value.
export const GROUPS = [
  ["Attempts", [
    duration("lease", "Lease", "A worker that does not renew it in this time loses the job."),
    duration("timeout", "Timeout", "An attempt that runs longer is ended.", { empty: "none" }),
    number("max_attempts", "Attempts", "A job that fails so often is dead; 0 means no bound."),
    number("max_crashes", "Crashes", "A job that crashes its process so often is quarantined."),
    text("backoff", "Backoff", "The delay before the next attempt: exponential(2s, max=5m), linear(5s), constant(1m).", {
      read: ({ backoff }) => (backoff ? backoffText(backoff) : ""),
    }),
    text("order", "A retried job", "Where it continues when its delay is over.", {
      options: [["tail", "goes behind newer jobs"], ["keep", "keeps its place"]],
    }),
  ]],
  ["Arrivals", [
    {
      name: "accepting",
      title: "Accept new jobs",
      hint: "If not, producers get an error, and the existing jobs run to their end.",
      type: "checkbox",
      read: (queue) => queue.accepting !== false,
      value: (given) => given,
    },
    number("max_depth", "Most waiting jobs", "More are refused.", { empty: "any number", trait: "limits" }),
    number("payload_max", "Largest payload", "In bytes."),
    duration("expires", "Expiry", "A job that has not started so long after it was due is dead.", { empty: "never" }),
  ]],
  ["Fairness and order", [
    text("fairness", "Fairness between tenants", "A job names its tenant when it is enqueued.", {
      options: [
        ["off", "off: by priority and time only"],
        ["shares", "shares: tenants take turns, by weight"],
        ["noisy", "noisy: tenants that use too much yield"],
      ],
      trait: "fairness",
    }),
    {
      name: "weights",
      title: "Weights of tenants",
      hint: "A tenant with weight 3 starts three jobs for each one of a tenant with weight 1, the default.",
      type: "weights",
      trait: "fairness",
      empty: "all equal",
      read: (queue) => Object.keys(queue.weights ?? {}).map((key) => [key, String(queue.weights[key])]),
      value: (rows) =>
        Object.fromEntries(rows.filter(([key]) => key).map(([key, weight]) => [key, numberOf(weight) ?? ""])),
    },
    duration("aging", "Aging", "A waiting job gains one priority after each such time.", { empty: "off", trait: "priority" }),
    number("group_batch", "Jobs of a group at a time", "How many jobs of a strict group one worker gets together.", { trait: "groups" }),
  ]],
  ["Keeping", [
    duration("retention", "Keep finished jobs for", "Done and cancelled ones are deleted later."),
    duration("dead_retention", "Keep dead letters for", "They are deleted later."),
    text("dead_queue", "Dead queue", "Dead letters move to this queue instead of staying here.", { empty: "none: they stay here" }),
  ]],
];

export const SETTINGS = GROUPS.flatMap(([, settings]) => settings);

// A value of the form as one line, for people.
export function lineOf(setting, value) {
  const { type, options, empty = "" } = setting;
  if (type === "checkbox") return value ? "yes" : "no";
  if (type === "weights") return weightsText(value) || empty;
  if (options) return options.find(([key]) => key === value)?.[1] ?? value;
  return value.trim() || empty;
}
