// One queue: its counts, charts, limits, tenants and settings, and the acts on it.
import { post } from "../lib/api.js";
import { count, duration, percent, plural, rate } from "../lib/format.js";
import { html, useEffect, useState } from "../lib/html.js";
import { reconnect, useLive } from "../lib/live.js";
import { useAction } from "../lib/resource.js";
import { changeQuery, href, useTitle } from "../lib/router.js";
import { useMay } from "../lib/session.js";
import { Figure, jobsBehind } from "../parts/figures.js";
import { PageHead } from "../parts/shell.js";
import { Empty, Failure, Loading } from "../parts/states.js";
import { Tabs } from "../parts/tabs.js";
import { Text } from "../parts/text.js";
import { QueueActions } from "./queue/actions.js";
import { Activity } from "./queue/activity.js";
import { Limits } from "./queue/limits.js";
import { QueueNotices } from "./queue/notices.js";
import { Settings } from "./queue/settings.js";
import { Tenants } from "./queue/tenants.js";

const OVERVIEW = ["Overview", href("/")];
const NAME = /^[A-Za-z0-9_.-]{1,80}$/;

// Only what can be the name of a queue is asked for.
export default function Page({ params: { name }, query }) {
  useTitle(name.slice(0, 80));
  if (NAME.test(name)) return html`<${QueuePage} name=${name} query=${query} />`;
  return html`<${PageHead} title="Queue" parent=${OVERVIEW} />
    <div class="panel"><${Empty} title="There is no such queue">
      The name of a queue has up to 80 letters, digits, dots, dashes and underscores.
    </${Empty}></div>`;
}

function QueuePage({ name, query }) {
  const { data, gone } = useLive(`queue:${name}`);
  const title = html`<${Text} value=${name} max=${200} />`;
  if (data) return html`<${Content} key=${name} name=${name} data=${data} tab=${query.tab} />`;
  const missing = gone && /^(not_found|unknown_queue|unknown)$/.test(gone.code);
  return html`<${PageHead} title=${title} parent=${OVERVIEW} />
    ${missing && html`<${Missing} name=${name} />`}
    ${gone && !missing && html`<${Failure} error=${gone} />`}
    ${!gone && html`<${Loading} what="queue" />`}`;
}

function Missing({ name }) {
  const may = useMay();
  const creating = useAction(() => post("v1/queues", { name }), { done: `Queue ${name} created` });
  const create = async () => {
    if (await creating.run()) reconnect();
  };
  return html`<div class="panel">
    <${Empty} title="There is no such queue">
      It may have been deleted. A queue is created with its first job, or by hand.
      ${may.act("operate") &&
      html`<span class="empty-act"><button class="button" disabled=${creating.busy} onClick=${create}>
        Create the queue
      </button></span>`}
    </${Empty}>
  </div>`;
}

// The live settings, with those of the last act until the stream has them too.
function useAnswered(queue) {
  const [answer, setAnswer] = useState(null);
  useEffect(() => setAnswer(null), [queue]);
  return [answer ? { ...queue, ...answer } : queue, setAnswer];
}

const TABS = ["activity", "limits", "tenants", "settings"];

function Content({ name, data, tab }) {
  const [queue, setAnswer] = useAnswered(data.queue);
  const { stats = {}, limits, tenants } = data;
  const chosen = TABS.includes(tab) ? tab : "activity";
  const found = { limits: (queue.limits ?? []).length, tenants: (tenants?.tenants ?? []).length };
  const tabs = TABS.map((key) => {
    const title = key[0].toUpperCase() + key.slice(1);
    return [key, found[key] ? html`${title} <span class="tab-count">${count(found[key])}</span>` : title];
  });
  const heading = html`<${Text} value=${name} max=${200} /> ${queue.paused &&
    html`<span class="badge badge-warn">paused</span>`} ${queue.accepting === false &&
    html`<span class="badge">not accepting</span>`}`;
  return html`<${PageHead} title=${heading} parent=${OVERVIEW}>
      <${QueueActions} queue=${queue} onAnswer=${setAnswer} />
    </${PageHead}>
    <${QueueNotices} queue=${queue} stats=${stats} onAnswer=${setAnswer} />
    <${Counts} queue=${queue} stats=${stats} />
    <${Tabs}
      label="Parts of the queue"
      tabs=${tabs}
      chosen=${chosen}
      onChoose=${(key) => changeQuery({ tab: key === "activity" ? "" : key })}
    >
      ${chosen === "activity" && html`<${Activity} name=${name} queue=${queue} />`}
      ${chosen === "limits" && html`<${Limits} queue=${queue} view=${limits} onAnswer=${setAnswer} />`}
      ${chosen === "tenants" && html`<${Tenants} queue=${queue} view=${tenants} />`}
      ${chosen === "settings" && html`<${Settings} queue=${queue} onAnswer=${setAnswer} />`}
    </${Tabs}>`;
}

const STATES = [
  ["ready", "Ready"],
  ["leased", "Leased"],
  ["delayed", "Delayed"],
  ["blocked", "Blocked"],
  ["dead", "Dead"],
  ["done", "Done"],
  ["cancelled", "Cancelled"],
];

function Counts({ queue, stats }) {
  const { name } = queue;
  const estimated = queue.estimated ?? [];
  const oldest = queue.oldest_age_ms ?? null;
  const known = (stats.workers ?? null) !== null;
  const busy = known ? `${plural(stats.workers, "worker")}, ${plural(stats.slots ?? 0, "slot")}` : "workers unknown";
  const wait = (stats.wait_p95 ?? null) === null ? null : `half within ${duration(stats.wait_p50)}`;
  return html`<section aria-label="Jobs by state" class="figures">
      ${STATES.map(([key, title]) => html`<${Figure}
        key=${key}
        name=${title}
        tone=${key}
        value=${queue[key]}
        estimated=${estimated.includes(key)}
        note=${key === "leased" && queue.overdue > 0 && `${count(queue.overdue)} overdue`}
        ...${jobsBehind(key, name)}
      />`)}
    </section>
    <section aria-label="Rates and waiting times" class="figures queue-rates">
      <${Figure} name="Oldest ready job" value=${oldest === null && queue.ready === 0 ? "none" : duration(oldest === null ? null : oldest / 1000)} />
      <${Figure} name="Arriving" value=${rate(stats.rate_in)} />
      <${Figure} name="Ending" value=${rate(stats.rate_out)} />
      <${Figure} name="Wait, 95 of 100 within" value=${duration(stats.wait_p95)} note=${wait} />
      <${Figure} name="Slots busy" value=${percent(stats.utilisation)} note=${busy} />
    </section>`;
}
