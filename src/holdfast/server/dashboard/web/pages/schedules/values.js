// The values of the form of a schedule, and the request that they make.
import { parseJson, stringifyJson } from "../../lib/json.js";

// A duration as the API reads it, the shortest exact way: 90000 → "90s".
function durationText(ms) {
  const [size, unit] = [[86_400_000, "d"], [3_600_000, "h"], [60_000, "m"], [1_000, "s"], [1, "ms"]].find(
    ([each]) => ms % each === 0,
  );
  return `${ms / size}${unit}`;
}

const kindOf = ({ task }) => (task === "command" || task === "webhook" ? task : "task");

// The values of the form, all texts, for a new schedule or an existing one.
export function valuesOf(old) {
  if (!old) {
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
    const rule = { name: "", by: "cron", cron: "0 3 * * *", every: "10m", zone };
    const missed = { missed: "once", missed_max: "100", grace: "1m" };
    const work = { kind: "task", task: "", payload: "{}", command: "", webhook: "" };
    return { ...rule, ...missed, ...work, queue: "default", priority: "0", tenant: "" };
  }
  const kind = kindOf(old);
  return {
    name: old.name,
    by: old.cron ? "cron" : "every",
    cron: old.cron ?? "",
    every: old.every_ms ? durationText(old.every_ms) : "",
    zone: old.zone,
    missed: old.missed,
    missed_max: String(old.missed_max),
    grace: durationText(old.grace_ms),
    kind,
    queue: old.queue,
    task: old.task,
    payload: kind === "task" ? stringifyJson(old.payload, 2) : "",
    command: kind === "command" ? commandText(old.payload) : "",
    webhook: kind === "webhook" ? String(old.payload?.url ?? "") : "",
    priority: String(old.priority),
    tenant: old.tenant ?? "",
  };
}

// A shell line as it is, a list of arguments as JSON.
const commandText = (payload) =>
  typeof payload?.command === "string" ? payload.command : stringifyJson(payload?.command ?? payload);

// The body of the request: every given value of a new schedule, the changed ones of an old one.
export function bodyOf(values, before) {
  const isNew = before === null;
  const changed = (name) => isNew || values[name] !== before[name];
  const body = isNew ? { name: values.name.trim() } : {};
  if (changed("by") || changed(values.by)) body[values.by] = values[values.by].trim();
  if (values.by === "cron" && changed("zone")) body.zone = values.zone.trim();
  for (const name of ["missed", "grace"]) if (changed(name)) body[name] = values[name].trim();
  if (values.missed === "all" && changed("missed_max")) body.missed_max = numberOf("missed_max", values);
  const job = jobOf(values, changed);
  if (isNew || Object.keys(job).length) body.job = job;
  return body;
}

function jobOf(values, changed) {
  const job = {};
  if (changed("queue")) job.queue = values.queue.trim();
  if (changed("priority")) job.priority = numberOf("priority", values);
  if (changed("tenant") && values.tenant) job.tenant = values.tenant;
  const isWork = changed("kind") || changed(values.kind);
  if (values.kind !== "task") {
    const work = values[values.kind].trim();
    if (isWork) job[values.kind] = values.kind === "command" ? commandOf(work) : work;
    return job;
  }
  if (isWork || changed("payload")) {
    job.task = values.task.trim();
    job.payload = payloadOf(values.payload);
  }
  return job;
}

function commandOf(text) {
  if (!text.startsWith("[")) return text;
  try {
    return parseJson(text);
  } catch (error) {
    return refuse("command", `This is not a list of arguments in JSON: ${error.message}`);
  }
}

// An error of the form itself, like those of the API.
function refuse(field, message) {
  throw Object.assign(new Error(message), { detail: { field } });
}

function numberOf(name, values) {
  if (!/^-?\d{1,9}$/.test(values[name].trim())) refuse(name, "Expected a whole number.");
  return Number(values[name]);
}

function payloadOf(text) {
  try {
    return parseJson(text.trim() || "null");
  } catch (error) {
    return refuse("payload", `This is not JSON: ${error.message}`);
  }
}
