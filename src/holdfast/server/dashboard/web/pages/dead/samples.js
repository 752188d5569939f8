// The newest letters of a cause: each with its error, its payload, and a way back.
import { get, post } from "../../lib/api.js";
import { count, plural } from "../../lib/format.js";
import { html, useState } from "../../lib/html.js";
import { useAction, useResource } from "../../lib/resource.js";
import { href, to } from "../../lib/router.js";
import { Icon } from "../../parts/icon.js";
import { Failure, Loading } from "../../parts/states.js";
import { Text, Time } from "../../parts/text.js";
import { Value } from "../../parts/value.js";
import { useNews } from "./news.js";

const SAMPLES = 5;
const ERROR_MAX = 1_000;

// An error that is `shown` above already is not repeated.
export function Samples({ filter, newest, shown, total, acts }) {
  const { data, error, reload } = useResource(
    (signal) => get("v1/dead", { ...filter, limit: SAMPLES }, { signal }),
    [JSON.stringify(filter)],
  );
  const news = useNews(newest, acts?.acted, reload);
  const jobs = data?.jobs ?? [];
  const { reason, ...query } = filter;
  return html`<section class="panel" aria-labelledby="samples-title">
    <div class="panel-head">
      <h2 id="samples-title">Newest letters <span class="hint">${data && `${count(jobs.length)} of ${count(total)}`}</span></h2>
      <div class="actions">
        ${news.notice}
        <a class="button button-quiet" href=${href("/jobs", { ...query, reason, state: "dead" })}>All of them as jobs</a>
      </div>
    </div>
    ${error && !data && html`<${Failure} error=${error} retry=${reload} />`}
    ${!data && !error && html`<${Loading} what="letters" />`}
    <ul class="letters" ref=${news.frame} onPointerLeave=${news.leave}>
      ${jobs.map((job, at) => html`<${Letter} key=${job.id} job=${job} first=${at === 0} shown=${shown} acts=${acts} onDone=${news.show} />`)}
    </ul>
  </section>`;
}

// Puts back one letter at once. Named by its id it may be put back any number of times.
export function usePutBack(id, onDone) {
  const acting = useAction(() => post("v1/dead/retry", { filter: { ids: [id] } }), {
    done: ({ retried }) => (retried ? "Put back: the job is ready again" : "The letter has changed: nothing was put back"),
  });
  const run = async () => {
    if (await acting.run()) onDone?.();
  };
  return { run, busy: acting.busy };
}

function Letter({ job, first, shown, acts, onDone }) {
  const [open, setOpen] = useState(first);
  const back = usePutBack(job.id, onDone);
  const failure = job.failures.at(-1);
  return html`<li class="letter">
    <div class="letter-head">
      <button class="letter-toggle" aria-expanded=${open ? "true" : "false"} aria-label=${`Details of ${job.id}`} onClick=${() => setOpen(!open)}>
        <${Icon} name=${open ? "down" : "right"} />
      </button>
      <div class="letter-title">
        <a href=${href(to`/jobs/${job.id}`)}><code>${job.id}</code></a>
        <span class="hint">
          <${Text} value=${job.task} max=${80} /> in <${Text} value=${job.queue} max=${80} />, ${plural(job.attempts, "attempt")}, died <${Time} value=${job.finished_at} />${job.worker && html` on <${Text} value=${job.worker} max=${80} />`}${job.redrives > 0 && `, put back ${plural(job.redrives, "time")} before`}
        </span>
      </div>
      ${acts &&
      html`<div class="actions">
        <button class="button" disabled=${back.busy} onClick=${back.run}>Put back</button>
        <button class="button button-quiet" onClick=${() => acts.putBack({ ids: [job.id] }, 1, { edits: true })}>Edit…</button>
      </div>`}
    </div>
    ${open &&
    html`<div class="letter-body">
      ${failure?.error && failure.error !== shown && html`<pre class="error-text" tabindex="0" aria-label="Error"><${Text} value=${failure.error} max=${ERROR_MAX} /></pre>`}
      ${failure?.trace && html`<${Trace} text=${failure.trace} />`}
      <h3>Payload</h3>
      <${Value} value=${job.payload} base64=${job.payload_base64} label="Payload" />
    </div>`}
  </li>`;
}

function Trace({ text }) {
  const [open, setOpen] = useState(false);
  return html`<div>
    <button class="link" aria-expanded=${open ? "true" : "false"} onClick=${() => setOpen(!open)}>
      ${open ? "Hide the trace" : "Show the trace"}
    </button>
    ${open && html`<pre class="trace" tabindex="0" aria-label="Trace"><${Text} value=${text} max=${8_000} /></pre>`}
  </div>`;
}
