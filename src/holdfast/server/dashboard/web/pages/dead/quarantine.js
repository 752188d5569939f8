// Jobs in quarantine: dead because they crashed the processes that ran them.
import { get } from "../../lib/api.js";
import { plural } from "../../lib/format.js";
import { html, useEffect, useState } from "../../lib/html.js";
import { useAction, useResource } from "../../lib/resource.js";
import { href, to } from "../../lib/router.js";
import { Empty, Failure, Loading } from "../../parts/states.js";
import { Text, Time } from "../../parts/text.js";
import { useNews } from "./news.js";
import { usePutBack } from "./samples.js";

const PAGE = 20;
const OUTPUT_MAX = 2_000;
const SIGNALS = { 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM" };
const MEANINGS = { 9: "killed, often because memory ran out", 11: "invalid memory access", 6: "aborted" };

// `stamp` changes when the dead letters did.
export function Quarantine({ filter, stamp, acts }) {
  const key = JSON.stringify(filter);
  const [more, setMore] = useState({ jobs: [], after: undefined });
  const { reason, ...query } = filter;
  const { data, error, reload } = useResource(
    (signal) => get("v1/dead/quarantine", { ...query, limit: PAGE }, { signal }),
    [key],
  );
  const news = useNews(stamp, acts?.acted, reload);
  useEffect(() => setMore({ jobs: [], after: undefined }), [data]);
  const after = more.after === undefined ? data?.after : more.after;
  const loading = useAction(async () => {
    const page = await get("v1/dead/quarantine", { ...query, limit: PAGE, after });
    setMore({ jobs: [...more.jobs, ...page.jobs], after: page.after });
  });
  if (error && !data) return html`<${Failure} error=${error} retry=${reload} />`;
  if (!data) return html`<${Loading} what="quarantine" />`;
  const jobs = [...data.jobs, ...more.jobs];
  if (jobs.length === 0 && after === null) {
    return html`<div class="panel"><h2 class="sr-only">Quarantine</h2><${Empty} title="No job is in quarantine">
      A job that crashes its process again and again is kept apart here, so that it cannot take other jobs down.
    </${Empty}></div>`;
  }
  return html`<section class="panel" aria-labelledby="quarantine-title">
    <div class="panel-head">
      <h2 id="quarantine-title">Quarantine <span class="hint">jobs that crashed their processes</span></h2>
      ${news.notice}
    </div>
    <ul class="letters" ref=${news.frame} onPointerLeave=${news.leave}>
      ${jobs.map((job) => html`<${Crashed} key=${job.id} job=${job} offered=${Boolean(acts)} onDone=${news.show} />`)}
    </ul>
    ${after !== null &&
    html`<div class="panel-body"><button class="button" disabled=${loading.busy} onClick=${() => loading.run()}>Show more</button></div>`}
  </section>`;
}

function endOf({ signal, exit_code: code }) {
  if (signal) return `ended by ${SIGNALS[signal] ?? `signal ${signal}`}${MEANINGS[signal] ? ` (${MEANINGS[signal]})` : ""}`;
  return code === null || code === undefined ? "ended without a word" : `ended with exit code ${code}`;
}

function Crashed({ job, offered, onDone }) {
  const back = usePutBack(job.id, onDone);
  return html`<li class="letter">
    <div class="letter-head">
      <div class="letter-title">
        <strong><${Text} value=${job.task} max=${80} /> crashed ${plural(job.crashes, "time")}, ${endOf(job)}</strong>
        <span class="hint">
          <a href=${href(to`/jobs/${job.id}`)}><code>${job.id}</code></a> in <${Text} value=${job.queue} max=${80} />, died <${Time} value=${job.died_at} />${job.workers.length > 0 && html` on <${Text} value=${job.workers.slice(0, 3).join(", ")} max=${120} />`}${job.redrives > 0 && `, put back ${plural(job.redrives, "time")} before`}
        </span>
      </div>
      ${offered && html`<button class="button" disabled=${back.busy} onClick=${back.run}>Put back</button>`}
    </div>
    <div class="letter-body">
      ${job.text && html`<pre class="error-text" tabindex="0" aria-label="Error"><${Text} value=${job.text} max=${OUTPUT_MAX} /></pre>`}
      ${job.words && html`<h3>Last words of the process</h3><pre class="trace" tabindex="0" aria-label="Last words of the process"><${Text} value=${job.words.slice(-OUTPUT_MAX)} /></pre>`}
      ${job.output && html`<h3>End of the job's output</h3><pre class="trace" tabindex="0" aria-label="End of the job's output"><${Text} value=${job.output.slice(-OUTPUT_MAX)} /></pre>`}
    </div>
  </li>`;
}
