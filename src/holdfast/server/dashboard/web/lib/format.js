// Values as people read them. Unknown ones are an en dash, never 0; estimates begin with "~".
import { instant } from "./clock.js";
import { ExactNumber } from "./json.js";

export const UNKNOWN = "–";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const three = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

const isUnknown = (value) => value === null || value === undefined || Number.isNaN(Number(value));

// 12,345 · ~12,345
export function count(value, estimated = false) {
  if (isUnknown(value)) return UNKNOWN;
  const text =
    value instanceof ExactNumber && /^-?\d+$/.test(value.text)
      ? whole.format(BigInt(value.text))
      : whole.format(Number(value));
  return estimated ? `~${text}` : text;
}

// 12.3K, for axes and narrow places
export const compact = (value, estimated = false) =>
  isUnknown(value) ? UNKNOWN : (estimated ? "~" : "") + short.format(Number(value));

// 1 job · 2 jobs
export const plural = (value, one, many = `${one}s`) =>
  `${count(value)} ${Number(value) === 1 ? one : many}`;

// Jobs per second, or per minute or hour if they are few: 12.4/s · 3/min
export function rate(value) {
  if (isUnknown(value)) return UNKNOWN;
  const perSecond = Number(value);
  if (perSecond === 0) return "0/s";
  if (perSecond >= 0.95) return `${perSecond >= 1000 ? short.format(perSecond) : three.format(perSecond)}/s`;
  if (perSecond * 60 >= 0.95) return `${three.format(perSecond * 60)}/min`;
  return `${three.format(perSecond * 3600)}/h`;
}

const UNITS = [
  [86_400, "d", 3_600, "h"],
  [3_600, "h", 60, "min"],
  [60, "min", 1, "s"],
];

// Seconds: 250 µs · 12 ms · 3.2 s · 4 min 10 s · 2 h 5 min · 3 d 4 h
export function duration(value) {
  if (isUnknown(value)) return UNKNOWN;
  const seconds = Math.abs(Number(value));
  const sign = Number(value) < 0 ? "-" : "";
  if (seconds === 0) return "0 s";
  if (seconds < 0.001) return `${sign}${three.format(seconds * 1e6)} µs`;
  if (seconds < 0.9995) return `${sign}${three.format(seconds * 1e3)} ms`;
  if (seconds < 9.95) return `${sign}${seconds.toFixed(1)} s`;
  const rounded = Math.round(seconds);
  if (rounded < 60) return `${sign}${rounded} s`;
  const [size, unit, smaller, smallUnit] = UNITS.find(([least]) => rounded >= least);
  const rest = Math.floor((rounded % size) / smaller);
  const large = whole.format(Math.floor(rounded / size));
  return rest ? `${sign}${large} ${unit} ${rest} ${smallUnit}` : `${sign}${large} ${unit}`;
}

// Whole seconds, without a fraction: 3 s
export const wholeDuration = (seconds) => duration(Math.round(seconds)).replace(".0", "");

export function bytes(value) {
  if (isUnknown(value)) return UNKNOWN;
  let size = Number(value);
  if (size < 1024) return `${whole.format(size)} B`;
  for (const unit of ["KiB", "MiB", "GiB", "TiB"]) {
    size /= 1024;
    if (size < 1024 || unit === "TiB") return `${three.format(size)} ${unit}`;
  }
  return UNKNOWN;
}

// A share from 0 to 1: 42 %
export const percent = (value) =>
  isUnknown(value) ? UNKNOWN : `${whole.format(Number(value) * 100)} %`;

const two = (number) => String(number).padStart(2, "0");

// 2026-01-31 08:00:05
export function localTime(value) {
  const time = instant(value);
  if (time === null) return UNKNOWN;
  const at = new Date(time);
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

// 2026-01-31 08:00:05 UTC
export function utcTime(value) {
  const time = instant(value);
  return time === null
    ? UNKNOWN
    : `${new Date(time).toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

// 3 s ago · in 4 min
export function relativeTime(value, at) {
  const time = instant(value);
  if (time === null) return UNKNOWN;
  const seconds = Math.round((at - time) / 1000);
  if (seconds === 0) return "now";
  const text = wholeDuration(roughly(Math.abs(seconds)));
  return seconds > 0 ? `${text} ago` : `in ${text}`;
}

// Large ages without the smaller unit, which would only flicker.
function roughly(seconds) {
  if (seconds >= 172_800) return seconds - (seconds % 86_400);
  if (seconds >= 36_000) return seconds - (seconds % 3_600);
  return seconds >= 120 ? seconds - (seconds % 60) : seconds;
}

// A time by preference: "relative", "local" or "utc".
export function timeText(value, preference, at) {
  if (preference === "utc") return utcTime(value);
  return preference === "local" ? localTime(value) : relativeTime(value, at);
}

// A message of the API as a sentence of the page.
export const sentence = (text) => {
  const [first = ""] = text;
  return first.toUpperCase() + text.slice(first.length);
};

// Text with control characters and bidirectional overrides made visible, so that none acts.
export const visible = (text) =>
  String(text)
    .replace(
      /[\u0000-\u0008\u000b-\u001f]/g,
      (char) => `\\x${char.codePointAt(0).toString(16).padStart(2, "0")}`,
    )
    .replace(
      /[\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g,
      (char) => `\\u${char.codePointAt(0).toString(16).padStart(4, "0")}`,
    );
