// One job: why it waits, its path and timeline, attempts, output, values, relatives, and all acts.
import { v1 } from "../lib/api.js";
import { visible } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { stringifyJson } from "../lib/json.js";
import { href, useTitle } from "../lib/router.js";
import { quoted } from "../lib/shell.js";
import { useMay } from "../lib/session.js";
import { CopyButton, CopyCall } from "../parts/copy.js";
import { Menu, MenuItem } from "../parts/menu.js";
import { PageHead } from "../parts/shell.js";
import { Empty, Failure, Loading } from "../parts/states.js";
import { State, Text } from "../parts/text.js";
import { Value } from "../parts/value.js";
import { ACTS, ActDialog } from "./job/acts.js";
import { Attempts } from "./job/attempts.js";
import { isFinished, useExplanation, useJob } from "./job/data.js";
import { Diagram } from "./job/diagram.js";
import { EditDialog } from "./job/edit.js";
import { Explain } from "./job/explain.js";
import { Facts } from "./job/facts.js";
import { Family } from "./job/family.js";
import { Output } from "./job/output.js";
import { Timeline } from "./job/timeline.js";
import { stateOf } from "./jobs/columns.js";
import { Notice } from "./jobs/notice.js";

const PARENT = ["Jobs", href("/jobs")];
const ID = /^[A-Za-z0-9_.:@-]{1,128}$/;

// Only what can be the id of a job is asked for.
export default function Page({ params: { id } }) {
  useTitle(`Job ${id.slice(0, 60)}`);
  return ID.test(id) ? html`<${Job} id=${id} />` : html`<${NoJob} id=${id} />`;
}

const NoJob = ({ id }) => html`<${PageHead} title="Job" parent=${PARENT} />
  <${Empty} title="There is no such job">
    No job has the id <code>${visible(id.slice(0, 128))}</code>: it was deleted, or never existed. Finished jobs are
    deleted when the retention of their queue is over.
  </${Empty}>`;

function Job({ id }) {
  const found = useJob(id);
  if (found.job !== null) return html`<${Content} ...${found} />`;
  if (found.error?.status === 404) return html`<${NoJob} id=${id} />`;
  return html`<${PageHead} title="Job" parent=${PARENT} />
    ${found.error
      ? html`<${Failure} error=${found.error} retry=${found.reload} />`
      : html`<${Loading} what="job" />`}`;
}

function Content({ job, events, output, error, gone, reload, forget }) {
  const may = useMay();
  const [asked, setAsked] = useState(null);
  const finished = isFinished(job);
  const explanation = useExplanation(job.id, job, events, gone);
  const close = () => setAsked(null);
  const done = (name) => {
    if (name === "delete") return forget();
    reload();
    return explanation.reload();
  };
  return html`<${PageHead} title=${html`<${Text} value=${job.task} max=${100} />`} parent=${PARENT}>
      ${may.act("operate") && !gone && html`<${Buttons} job=${job} onAct=${setAsked} />`}
      <${CopyMenu} job=${job} />
    </${PageHead}>
    <div class="job-line">
      <span class="job-state"><${State} value=${stateOf(job)} /></span>
      ${job.cancel_requested && job.state === "leased" && html`<span class="badge badge-warn">asked to stop</span>`}
      <code class="job-name"><${Text} value=${job.id} /></code><${CopyButton}
        text=${job.id}
        label="Copy the id"
        iconOnly
      />
    </div>
    ${gone && html`<${Notice} tone="warn">This job was deleted. The page shows it as it was last seen.</${Notice}>`}
    ${error && !gone && html`<${Failure} error=${error} retry=${reload} />`}
    ${!gone && html`<${Explain}
      explanation=${explanation}
      reload=${done}
      title=${finished ? "How it ended" : "Why it is not running"}
    />`}
    <div class="job-columns">
      <section class="panel" aria-labelledby="facts-title">
        <div class="panel-head"><h2 id="facts-title">State</h2></div>
        <div class="panel-body">
          <${Diagram} events=${events} state=${job.state} />
          <${Facts} job=${job} />
        </div>
      </section>
      <section class="panel" aria-labelledby="timeline-title">
        <div class="panel-head"><h2 id="timeline-title">Timeline</h2></div>
        <div class="panel-body"><${Timeline} events=${events} finished=${finished} /></div>
      </section>
    </div>
    <${Attempts} events=${events} job=${job} />
    ${(output || job.state === "leased") && html`<${Output} output=${output} running=${job.state === "leased"} />`}
    <div class="columns">
      <${ValuePanel}
        title="Payload"
        value=${job.payload}
        base64=${job.payload_base64}
        bytes=${job.payload_bytes}
        note=${job.content_type === "application/json" ? null : job.content_type}
      />
      ${job.result !== null && job.result !== undefined && html`<${ValuePanel} title="Result" value=${job.result} />`}
    </div>
    <${Family} job=${job} />
    ${asked === "edit" && html`<${EditDialog} job=${job} onClose=${close} onDone=${done} />`}
    ${asked && asked !== "edit" && html`<${ActDialog} name=${asked} job=${job} onClose=${close} onDone=${done} />`}`;
}

// The usual acts as buttons, the others in a menu.
function Buttons({ job, onAct }) {
  const canEdit = job.state === "waiting" || job.state === "dead";
  const acts = Object.entries(ACTS).filter(([, { fits }]) => fits(job));
  const [usual, others] = [acts.filter(([, { usual }]) => usual), acts.filter(([, { usual }]) => !usual)];
  const button = ([name, { title, danger }]) => html`<button
    key=${name}
    class=${danger ? "button text-danger" : name === "retry" && job.state === "dead" ? "button button-primary" : "button"}
    onClick=${() => onAct(name)}
  >${title}…</button>`;
  return html`${usual.map(button)}
    ${canEdit && html`<button
      class="button"
      onClick=${() => onAct("edit")}
    >${job.state === "dead" ? "Edit and put back…" : "Edit…"}</button>`}
    ${others.length === 1 && button(others[0])}
    ${others.length > 1 &&
    html`<${Menu} label="More" end>
      ${(close) => others.map(
        ([name, { title, danger }]) => html`<${MenuItem}
          key=${name}
          danger=${danger}
          onClick=${() => {
            close();
            onAct(name);
          }}
        >${title}…</${MenuItem}>`,
      )}
    </${Menu}>`}`;
}

// The key makes the chosen view start anew when the value changes.
const ValuePanel = ({ title, value, base64, bytes, note }) => html`<section
  class="panel"
  aria-label=${`${title} of the job`}
>
  <div class="panel-head"><h2>${title} ${note && html`<span class="hint">${note}</span>`}</h2></div>
  <div class="panel-body">
    ${value === undefined ? html`<${Loading} what=${title.toLowerCase()} />` : html`<${Value}
      key=${typeof value}
      value=${value}
      base64=${base64}
      label=${title}
      bytes=${bytes}
    />`}
  </div>
</section>`;

// What to enqueue to run the same again.
function again(job) {
  const { task, queue, payload, priority, tenant, group, labels = {} } = job;
  return {
    task,
    queue,
    payload,
    ...(priority && { priority }),
    ...(tenant && { tenant }),
    ...(group && { group }),
    ...(Object.keys(labels).length > 0 && { labels }),
  };
}

function CopyMenu({ job }) {
  const show = `holdfast job show ${job.id}`;
  const isJson = job.payload_base64 === undefined && job.content_type === "application/json";
  const isPlain = isJson && job.task !== "command" && job.task !== "webhook";
  return html`<${Menu} label="Copy" icon="copy" end>
    ${() => {
      const body = again(job);
      const enqueue = `holdfast enqueue ${quoted(stringifyJson(body))}`;
      return html`<p class="menu-title">Show this job</p>
        <${CopyCall} method="GET" path=${v1`jobs/${job.id}`} command=${show} />
        ${isPlain &&
        html`<p class="menu-title">Enqueue the same again</p>
          <${CopyCall} method="POST" path="v1/jobs" body=${{ jobs: [body] }} command=${enqueue} />`}`;
    }}
  </${Menu}>`;
}
