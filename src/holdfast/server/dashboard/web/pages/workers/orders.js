// Orders to workers: cordon, uncordon, drain, stop. A worker gets them with its next heartbeat.
import { post } from "../../lib/api.js";
import { count, plural } from "../../lib/format.js";
import { html, useState } from "../../lib/html.js";
import { useAction } from "../../lib/resource.js";
import { Dialog, confirm } from "../../parts/dialog.js";
import { Field, Form, errorOf } from "../../parts/form.js";
import { Text } from "../../parts/text.js";

const SAID = { cordon: "Cordoned", uncordon: "Uncordoned", drain: "Told to drain:" };

const whom = (workers) => (workers.length === 1 ? workers[0].name : plural(workers.length, "worker"));

const order = (name, workers, more = {}) =>
  post("v1/workers/orders", { order: name, workers: workers.map((each) => each.name), ...more });

export function Orders({ workers, onDone }) {
  const [stops, setStops] = useState(false);
  const acting = useAction(
    async (name) => {
      await order(name, workers);
      return name;
    },
    { done: (name) => `${SAID[name]} ${whom(workers)}` },
  );
  const run = async (name) => (await acting.run(name)) !== undefined && onDone?.();
  const drain = async () => {
    const jobs = workers.reduce((sum, each) => sum + each.running, 0);
    const sure = await confirm({
      title: `Drain ${whom(workers)}?`,
      text:
        workers.length === 1
          ? `It leases no more jobs, finishes the ${plural(jobs, "job")} it runs, however long that takes, and exits. Something else must start it again.`
          : `They lease no more jobs, finish the ${plural(jobs, "job")} they run, however long that takes, and exit. Something else must start them again.`,
      label: `Drain ${whom(workers)}`,
    });
    if (sure) await run("drain");
  };
  const some = (test) => workers.some(test);
  return html`<span class="actions">
    ${some(({ cordoned }) => !cordoned) &&
    html`<button class="button" disabled=${acting.busy} title="Lease no more jobs, even after a restart" onClick=${() => run("cordon")}>Cordon</button>`}
    ${some(({ cordoned }) => cordoned) &&
    html`<button class="button" disabled=${acting.busy} title="Lease jobs again" onClick=${() => run("uncordon")}>Uncordon</button>`}
    <button class="button" disabled=${acting.busy} title="Finish the running jobs, however long that takes, and exit" onClick=${drain}>Drain…</button>
    <button class="button" disabled=${acting.busy} title="Finish the running jobs within a grace period, and exit" onClick=${() => setStops(true)}>Stop…</button>
    ${stops && html`<${Stop} workers=${workers} onClose=${() => setStops(false)} onDone=${onDone} />`}
  </span>`;
}

function Stop({ workers, onClose, onDone }) {
  const [grace, setGrace] = useState("");
  const stopping = useAction(
    () => order("stop", workers, grace.trim() ? { grace: grace.trim() } : {}),
    { done: `Told to stop: ${whom(workers)}`, quiet: true },
  );
  const submit = async () => {
    if ((await stopping.run()) === undefined) return;
    onClose();
    onDone?.();
  };
  const jobs = workers.reduce((sum, each) => sum + each.running, 0);
  return html`<${Dialog} title=${`Stop ${whom(workers)}?`} onClose=${onClose} footer="">
    <p>
      ${workers.length === 1 ? "It leases no more jobs and exits" : "They lease no more jobs and exit"} once the ${count(jobs)} running ${jobs === 1 ? "job has" : "jobs have"} ended.
      Jobs that outlast the grace period go back to their queues and run again elsewhere.
    </p>
    ${workers.length > 1 && html`<p class="hint"><${Text} value=${workers.map(({ name }) => name).join(", ")} max=${300} /></p>`}
    <${Form}
      submit=${`Stop ${whom(workers)}`}
      busy=${stopping.busy}
      error=${stopping.error}
      fields=${["grace"]}
      onSubmit=${submit}
      onCancel=${onClose}
    >
      <${Field}
        label="Grace period"
        value=${grace}
        onInput=${setGrace}
        placeholder="the worker's own, 30s unless it was set"
        hint="For example 10s or 5m; 0s gives the jobs back at once."
        error=${errorOf(stopping.error, "grace")}
        autocomplete="off"
      />
    </${Form}>
  </${Dialog}>`;
}
