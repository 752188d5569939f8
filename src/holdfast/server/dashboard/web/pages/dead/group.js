// One cause of death: the error, when and where it was seen, and some of its letters.
import { count, percent, plural, sentence } from "../../lib/format.js";
import { html } from "../../lib/html.js";
import { href } from "../../lib/router.js";
import { Icon } from "../../parts/icon.js";
import { Text, Time } from "../../parts/text.js";
import { REASONS } from "./filter.js";
import { filterOf } from "./groups.js";
import { Samples } from "./samples.js";
import { Trend } from "./trend.js";

const ERROR_MAX = 2_000;
const PARTS = [
  ["queues", "Queues", "queue"],
  ["tasks", "Tasks", "task"],
  ["tenants", "Tenants", "tenant"],
  ["workers", "Workers", "worker"],
];

export function GroupDetails({ group, bucketMs, filter, query, acts }) {
  const wanted = filterOf(group, filter);
  const reasons = Object.keys(group.reasons).map((reason) => REASONS[reason] ?? reason);
  const { fingerprint, ...rest } = query;
  return html`<p><a href=${href("/dead", rest)}>All causes</a></p>
    <section class="panel" aria-labelledby="cause-title">
      <div class="panel-head">
        <h2 id="cause-title"><${Text} value=${group.type || sentence(reasons[0] ?? "unknown cause")} max=${200} /></h2>
        ${acts &&
        wanted &&
        html`<div class="actions">
          <button class="button button-primary" onClick=${() => acts.putBack(wanted, group.count)}>
            Put ${plural(group.count, "letter")} back…
          </button>
          <button class="button button-quiet" onClick=${() => acts.purge(wanted)}>Delete…</button>
        </div>`}
      </div>
      <div class="panel-body stack">
        <pre class="error-text" tabindex="0" aria-label="Error of the newest letter"><${Text} value=${group.text} max=${ERROR_MAX} /></pre>
        <p class="why"><${Icon} name="info" /><span>
          ${plural(group.count, "letter")} died of this: ${reasons.join("; ") || "the reason is unknown"}.
          ${group.redriven > 0 && ` ${count(group.redriven)} of them had been put back before, and died again.`}
        </span></p>
        <dl class="facts">
          <div><dt>First seen</dt><dd>${group.estimated && "before "}<${Time} value=${group.first_at} /></dd></div>
          <div><dt>Last seen</dt><dd><${Time} value=${group.last_at} /></dd></div>
          <div><dt>Trend</dt><dd><${Trend} values=${group.trend} bucketMs=${bucketMs} /></dd></div>
          <div><dt>Fingerprint</dt><dd><code><${Text} value=${group.fingerprint} max=${60} /></code></dd></div>
        </dl>
        ${group.estimated && html`<p class="hint">Only the newest letters were read: the numbers below are lower bounds.</p>`}
        <div class="breakdown">
          ${PARTS.map(
            ([key, title, name]) => html`<${Breakdown}
              key=${key}
              title=${title}
              counts=${group[key]}
              link=${(value) => href("/dead", { ...query, [name]: value })}
            />`,
          )}
        </div>
      </div>
    </section>
    ${wanted && html`<${Samples} filter=${wanted} newest=${group.ids[0]} shown=${group.text} total=${group.count} acts=${acts} />`}`;
}

// Names with their counts as bars; a name leads to the letters that have it.
function Breakdown({ title, counts, link }) {
  const found = Object.entries(counts);
  const most = Math.max(...found.map(([, number]) => number), 1);
  return html`<section aria-label=${title}>
    <h3>${title}</h3>
    ${found.length === 0 && html`<p class="hint">none named</p>`}
    <ul>
      ${found.map(
        ([name, number]) => html`<li key=${name}>
          <span class="breakdown-bar" style=${{ width: percent(number / most).replace(" ", "") }}></span>
          <a href=${link(name)}><${Text} value=${name.length > 48 ? `${name.slice(0, 48)}…` : name} /></a>
          <span class="number">${count(number)}</span>
        </li>`,
      )}
    </ul>
  </section>`;
}
