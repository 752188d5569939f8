// The fields of a job, its labels and its headers.
import { count, percent, plural } from "../../lib/format.js";
import { html, useState } from "../../lib/html.js";
import { href, to } from "../../lib/router.js";
import { Time, Text } from "../../parts/text.js";

const PAIRS_SHOWN = 12;
const LINK_MAX = 100; // a longer text is folded by a button, which a link cannot contain
const PAIRS_STEP = 200;

const jobsWith = (name, value, max = 80) =>
  html`<a
    href=${href("/jobs", { [name]: value })}
    title=${`Jobs with this ${name}`}
  ><${Text} value=${value} max=${max} /></a>`;

// [title, shown?, content], in the order of interest. What a job does not have is left out.
const factsOf = (job) => [
  ["Queue", true, html`<a href=${href(to`/queues/${job.queue}`)}><${Text} value=${job.queue} /></a>`],
  ["Task", true, jobsWith("task", job.task)],
  ["Worker", job.worker, html`<${Text} value=${job.worker} max=${80} />`],
  ["Progress", typeof job.progress === "number" && job.state === "leased", html`<${Progress} value=${job.progress} />`],
  ["Attempts", true, `${count(job.attempts)} of ${job.max_attempts ? count(job.max_attempts) : "∞"}`],
  ["Priority", true, count(job.priority)],
  ["Tenant", job.tenant, jobsWith("tenant", job.tenant)],
  ["Group", job.group, jobsWith("group", job.group)],
  ["Key", job.key, jobsWith("key", job.key)],
  ["Reason", job.reason, jobsWith("reason", job.reason)],
  ["Fingerprint", job.fingerprint, jobsWith("fingerprint", job.fingerprint)],
  ["Came from", job.origin && job.origin !== job.queue, html`<${Text} value=${job.origin} />`],
  ["Put back", job.redrives > 0, `${count(job.redrives)} ×`],
  ["Created", true, html`<${Time} value=${job.created_at} />`],
  ["Due", job.state === "waiting", html`<${Time} value=${job.due_at} />`],
  ["Expires", job.expires_at, html`<${Time} value=${job.expires_at} />`],
  ["Leased", job.state === "leased", html`<${Time} value=${job.leased_at} />`],
  ["Lease ends", job.state === "leased" && job.deadline_at, html`<${Time} value=${job.deadline_at} />`],
  ["Finished", job.finished_at, html`<${Time} value=${job.finished_at} />`],
  ["After", job.after?.length > 0, `${plural(job.after?.length, "job")}, on ${job.after_on}`],
  ["Exit code", typeof job.exit_code === "number", count(job.exit_code)],
];

const Progress = ({ value }) => html`<span class="gauge gauge-wide">
  <span class="gauge-track"><span
    class="gauge-fill"
    style=${{ width: `${Math.min(100, Math.max(0, value * 100))}%` }}
  /></span>${percent(value)}
</span>`;

export function Facts({ job }) {
  return html`<dl class="fact-pairs">
      ${factsOf(job)
        .filter(([, shown]) => shown)
        .map(([title, , content]) => html`<dt key=${`${title}-t`}>${title}</dt><dd key=${title}>${content}</dd>`)}
    </dl>
    <${Pairs} title="Labels" pairs=${job.labels ?? {}} link />
    <${Pairs} title="Headers" pairs=${job.headers ?? {}} />`;
}

function Pairs({ title, pairs, link = false }) {
  const [limit, setLimit] = useState(PAIRS_SHOWN);
  const all = Object.keys(pairs);
  if (all.length === 0) return null;
  const shown = all.slice(0, limit);
  const content = (name) => html`<span class="pair-name"><${Text} value=${name} max=${LINK_MAX} /></span>${" "}
    <${Text} value=${pairs[name]} max=${LINK_MAX} />`;
  return html`<h3 class="pairs-title">${title} <span class="hint">${count(all.length)}</span></h3>
    <ul class="pairs">
      ${shown.map(
        (name) => html`<li key=${name} class="pair">
          ${link && name.length + pairs[name].length <= LINK_MAX
            ? html`<a
              href=${href("/jobs", { label: `${name}=${pairs[name]}` })}
              title="Jobs with this label"
            >${content(name)}</a>`
            : content(name)}
        </li>`,
      )}
    </ul>
    ${all.length > limit &&
    html`<button
      class="link"
      onClick=${() => setLimit(limit + PAIRS_STEP)}
    >Show ${count(Math.min(PAIRS_STEP, all.length - limit))} more</button>`}`;
}
