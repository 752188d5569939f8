// The progress of an act on many jobs.
import { html } from "../lib/html.js";

// `share` is from 0 to 1, or null while it is unknown; `label` says it in words.
export function Progress({ share, label, tone = "leased" }) {
  const known = share !== null && share !== undefined && Number.isFinite(share);
  const width = known ? `${Math.min(100, Math.max(0, share * 100))}%` : "100%";
  return html`<div
    class=${known ? "progress" : "progress progress-unknown"}
    role="progressbar"
    aria-label=${label}
    aria-valuemin="0"
    aria-valuemax="100"
    aria-valuenow=${known ? Math.round(share * 100) : undefined}
  >
    <span class="progress-track"><span class=${`bar-${tone}`} style=${{ width }} /></span>
    <span class="hint">${label}</span>
  </div>`;
}
