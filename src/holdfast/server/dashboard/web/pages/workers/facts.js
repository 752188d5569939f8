// What the page derives from a worker's record, and the small parts that show it.
import { UNKNOWN, count, duration } from "../../lib/format.js";
import { html } from "../../lib/html.js";
import { href, to } from "../../lib/router.js";
import { useSession } from "../../lib/session.js";
import { Text } from "../../parts/text.js";

const HEARTBEAT_MS = 15_000;

// The server tells ages in steps of 15 s, so that they change only if a heartbeat is late.
export function Heartbeat({ worker: { heartbeat_age_ms: age } }) {
  const seconds = duration(Math.floor(age / HEARTBEAT_MS) * (HEARTBEAT_MS / 1000));
  return html`<span class="nowrap">${age < HEARTBEAT_MS ? "within 15 s" : `over ${seconds} ago`}</span>`;
}

export const busyShare = ({ running, capacity }) => (capacity > 0 ? running / capacity : null);

const TONES = { healthy: "good", degraded: "warn", unhealthy: "critical" };

// Healthy, degraded or unhealthy, what was ordered, and why.
export function Health({ worker }) {
  const { health, why, cordoned, stopping, blocked } = worker;
  const reasons = [...new Set([why, blocked])].filter(Boolean);
  return html`<span class="facts-line">
      <span class=${`badge badge-${TONES[health] ?? ""}`}>${health}</span>
      ${cordoned && html`<span class="badge badge-warn" title="It leases no more jobs until it is uncordoned">cordoned</span>`}
      ${stopping && html`<span class="badge badge-warn" title="It ends its jobs and exits">stopping</span>`}
    </span>
    ${reasons.map((reason) => html`<span class="reason" key=${reason}><${Text} value=${reason} max=${160} /></span>`)}`;
}

// The worker's version, marked if it is not the server's.
export function Version({ value }) {
  const server = useSession().view?.version;
  const same = value === server;
  return html`<span
    class=${same ? "" : "badge badge-warn"}
    title=${same ? undefined : `The server runs ${server}`}
  ><${Text} value=${value || UNKNOWN} max=${40} /></span>`;
}

const QUEUES = 3;

// Its queues as links, with the weight where it is not 1.
export function Queues({ worker, all = false }) {
  const names = Object.keys(worker.queues);
  const shown = all ? names : names.slice(0, QUEUES);
  const more = names.length - shown.length;
  if (names.length === 0) return html`<span class="unknown">none</span>`;
  return html`<span class="facts-line">
    ${shown.map((name) => html`<a key=${name} href=${href(to`/queues/${name}`)} title=${name}
      ><${Text} value=${name} max=${80} />${worker.queues[name] !== 1 && html`<span class="zero"> :${count(worker.queues[name])}</span>`}</a
    >`)}
    ${more > 0 && html`<span class="zero">and ${count(more)} more</span>`}
  </span>`;
}

// The share of failed attempts among the recent ones, from 0 to 1.
export const failureRate = ({ failure_rate: rate, done, failed }) => (done + failed > 0 ? rate : null);
