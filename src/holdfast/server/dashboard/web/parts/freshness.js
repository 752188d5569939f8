// How old the live data is: "as of 3 s ago", and visibly stale if the stream is interrupted.
import { instant, useNow } from "../lib/clock.js";
import { wholeDuration } from "../lib/format.js";
import { html } from "../lib/html.js";
import { connection, reconnect } from "../lib/live.js";
import { useStore } from "../lib/store.js";
import { Icon } from "./icon.js";

const STALE_MS = 20_000;

function useFreshness() {
  const { state, asOf, retryAt, error } = useStore(connection);
  const at = useNow();
  const age = instant(asOf) === null ? null : Math.max(0, at - instant(asOf));
  const stale = state === "waiting" || (age !== null && age > STALE_MS && state !== "idle");
  return { state, age, stale, retryAt, error };
}

// Live data is at most some seconds old, which is not worth a number that changes all the time.
const NOW_MS = 6_500;
const words = (age) => (age < NOW_MS ? "now" : `${wholeDuration(age / 1000)} ago`);

export function Age({ age, stale }) {
  const text = age === null ? "no data yet" : `as of ${words(age)}`;
  return html`<span class=${stale ? "freshness freshness-stale" : "freshness"}>
    <span class=${`dot ${stale ? "dot-warn" : "dot-fresh"}`} />${stale ? `stale, ${text}` : text}
  </span>`;
}

export function Freshness() {
  const { state, age, stale } = useFreshness();
  if (state === "idle" || (age === null && !stale)) return null;
  return html`<${Age} age=${age} stale=${stale} />`;
}

// Above the page while what it shows may be out of date.
export function StaleNotice() {
  const { state, stale, retryAt, error } = useFreshness();
  if (!stale) return null;
  const seconds = retryAt ? Math.max(0, Math.ceil((retryAt - Date.now()) / 1000)) : 0;
  const next = state === "waiting" ? (seconds ? `Next attempt in ${seconds} s.` : "Connecting…") : "";
  return html`<div class="notice notice-warn" role="status">
    <${Icon} name="warn" />
    <div class="notice-text">
      <strong>The numbers below may be out of date.</strong>
      <p>${error?.message ?? "The connection to the server was interrupted."} ${next}</p>
    </div>
    <button class="button" onClick=${() => reconnect()}>Connect now</button>
  </div>`;
}
