// Workers: health, slots, versions and orders; with ?name= one worker and the jobs it holds.
import { count, plural } from "../lib/format.js";
import { html, useMemo } from "../lib/html.js";
import { useLive } from "../lib/live.js";
import { useSession } from "../lib/session.js";
import { Figure } from "../parts/figures.js";
import { Icon } from "../parts/icon.js";
import { PageHead } from "../parts/shell.js";
import { Empty, Failure, Loading } from "../parts/states.js";
import { Text } from "../parts/text.js";
import { WorkerTable } from "./workers/table.js";
import { Worker } from "./workers/worker.js";

export default function Workers({ query }) {
  const { data, gone } = useLive("workers");
  const rows = useMemo(() => {
    const found = data ? Object.values(data) : [];
    return found.sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
  }, [data]);
  if (query.name) {
    const worker = rows.find(({ name }) => name === query.name);
    return html`<${Worker} name=${query.name} worker=${worker} known=${data !== null} gone=${gone} />`;
  }
  return html`<${PageHead} title="Workers" />
    ${gone && html`<${Failure} error=${gone} />`}
    ${!data && !gone && html`<${Loading} what="workers" />`}
    ${data && (rows.length === 0 ? html`<${NoWorkers} />` : html`<${Fleet} rows=${rows} />`)}`;
}

const NoWorkers = () => html`<section class="panel">
  <${Empty} title="No worker has registered yet" command="holdfast worker start --queues default">
    A worker leases jobs from its queues and runs them. Start one on any machine that reaches the store:
  </${Empty}>
</section>`;

function Fleet({ rows }) {
  const sum = (key) => rows.reduce((total, row) => total + Number(row[key]), 0);
  const unhealthy = rows.filter(({ health }) => health === "unhealthy").length;
  const [slots, busy, failed] = [sum("capacity"), sum("running"), sum("failed")];
  const idle = rows.filter(({ cordoned, stopping }) => cordoned || stopping).length;
  return html`<${VersionSkew} rows=${rows} />
    <section aria-label="Totals" class="figures">
      <${Figure} name="Workers" value=${rows.length} />
      <${Figure} name="Unhealthy" value=${unhealthy} tone=${unhealthy ? "dead" : undefined} />
      <${Figure} name="Not leasing" value=${idle} tone=${idle ? "overdue" : undefined} note="cordoned or stopping" />
      <${Figure} name="Busy slots" value=${busy} tone="leased" note=${`of ${plural(slots, "slot")}`} />
      <${Figure} name="Leased ahead" value=${sum("prefetched")} />
      <${Figure} name="Attempts" value=${sum("done") + failed} note=${`${count(failed)} failed`} />
    </section>
    <${WorkerTable} rows=${rows} />`;
}

// Workers of another version than the server, or than each other.
function VersionSkew({ rows }) {
  const server = useSession().view?.version ?? "";
  const byVersion = Map.groupBy(rows, ({ version }) => version);
  if (byVersion.size === 1 && byVersion.has(server)) return null;
  const groups = [...byVersion].sort(([, a], [, b]) => b.length - a.length);
  return html`<div class="notice notice-warn">
    <${Icon} name="warn" />
    <div class="notice-text">
      <strong>Not every process runs version ${server}, the server's.</strong>
      <ul class="skew">
        ${groups.map(
          ([version, some]) => html`<li key=${version}>
            <code><${Text} value=${version || "unknown"} max=${40} /></code>
            ${version === server && " (the server's)"}: <${Text} value=${namesOf(some)} max=${200} />
          </li>`,
        )}
      </ul>
      <p>
        Versions may differ during an update. To finish it, drain the workers of other versions and start
        them again.
      </p>
    </div>
  </div>`;
}

const NAMED = 5;

function namesOf(workers) {
  const named = workers.slice(0, NAMED).map(({ name }) => name);
  const more = workers.length - named.length;
  return named.join(", ") + (more > 0 ? ` and ${more} more` : "");
}
