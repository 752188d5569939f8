// Settings of queues as the text that people write, and the server's messages about them.
import { count } from "../../lib/format.js";

const UNITS = [["w", 604_800_000], ["d", 86_400_000], ["h", 3_600_000], ["m", 60_000], ["s", 1_000]];

// A duration as its shortest exact text: 250ms, 30s, 2h. Nothing if there is none.
export function msText(ms) {
  if (ms === null || ms === undefined) return "";
  const found = Number(ms) !== 0 && UNITS.find(([, size]) => ms % size === 0);
  return found ? `${ms / found[1]}${found[0]}` : `${ms}ms`;
}

// 100/m burst 20
export function rateText(rate) {
  if (!rate) return "";
  const per = msText(rate.per_ms).replace(/^1(?=[a-z])/, "");
  return `${rate.count}/${per}${(rate.burst ?? 1) === 1 ? "" : ` burst ${rate.burst}`}`;
}

// exponential(2s, max=5m)
export function backoffText({ kind, first_ms: first, cap_ms: cap, factor, jitter }) {
  const parts = [msText(first), `max=${msText(cap)}`];
  if (Number(factor) !== 2) parts.push(`factor=${factor}`);
  if (Number(jitter) !== 1) parts.push(`jitter=${jitter}`);
  return `${kind}(${parts.join(", ")})`;
}

// The bounds of a limit in words.
export function boundsText({ concurrency, rate }) {
  const parts = [];
  if (concurrency) parts.push(`${count(concurrency)} at a time`);
  if (rate) parts.push(rateText(rate));
  return parts.join(", ");
}

// A number to send; other text is sent as it is, so that the server says what is wrong.
export function numberOf(text) {
  const value = text.trim();
  if (value === "") return null;
  return /^-?\d{1,15}$/.test(value) ? Number(value) : value;
}

// The server's message if it is about one of these fields, without what the place of it says.
// `instead` replaces a message that only quotes a regular expression.
export function fieldMessage(error, fields, instead) {
  if (!error) return undefined;
  const { message, detail = {} } = error;
  const isAbout = (name) =>
    detail.field === name ||
    message.includes(`$.${name}\``) ||
    message.includes(`$.${name}[`) ||
    new RegExp(`^${name}\\b`).test(message);
  if (!fields.some(isAbout)) return undefined;
  if (instead && message.includes("regex")) return instead;
  const short = message.replace(/^invalid body: /, "").replace(/ - at `\$\.[^`]*`$/, "").replaceAll("`", "").replace(/^Expected int, got \w+$/, "Expected a whole number");
  return short[0].toUpperCase() + short.slice(1);
}
