// Deletes the jobs of a queue in some states, counted first, in steps that can be stopped.
import { post, v1 } from "../../lib/api.js";
import { count, plural } from "../../lib/format.js";
import { html, useRef, useState } from "../../lib/html.js";
import { useAction, useResource } from "../../lib/resource.js";
import { showToast } from "../../lib/toasts.js";
import { Dialog, confirm } from "../../parts/dialog.js";
import { Field } from "../../parts/form.js";
import { Failure } from "../../parts/states.js";
import { Progress } from "../../parts/progress.js";

const KINDS = {
  waiting: ["Waiting jobs", { states: ["waiting"] }],
  running: ["Waiting and running jobs: workers lose their leases", { states: ["waiting"], force: true }],
  dead: ["Dead letters", { states: ["dead"] }],
  done: ["Finished jobs: done and cancelled", { states: ["done", "cancelled"] }],
};
const OPTIONS = Object.entries(KINDS).map(([key, [title]]) => [key, title]);

export function ClearDialog({ name, onClose }) {
  const [kind, setKind] = useState("waiting");
  const [deleted, setDeleted] = useState(0);
  const stopped = useRef(false);
  const path = v1`queues/${name}/clear`;
  const [title, wanted] = KINDS[kind];
  const counted = useResource((signal) => post(path, { ...wanted, dry_run: true }, { signal }), [kind]);
  const clearing = useAction(
    async () => {
      stopped.current = false;
      let total = 0;
      for (let more = true; more && !stopped.current; ) {
        const answer = await post(path, wanted);
        total += answer.deleted;
        setDeleted(total);
        more = answer.more && answer.deleted > 0;
      }
      return total;
    },
    { quiet: true },
  );
  const { found, more } = counted.data ?? {};
  const text = counted.data ? `${more ? "at least " : ""}${plural(found, "job")}` : "";
  const clear = async () => {
    const sure = await confirm({
      title: `Delete ${text} of queue ${name}?`,
      text: `${title}. This cannot be undone.`,
      label: `Delete ${text}`,
      count: found,
      danger: true,
    });
    if (!sure) return;
    const total = await clearing.run();
    if (total === undefined) return;
    showToast(`${plural(total, "job")} of queue ${name} deleted${stopped.current ? ", then stopped" : ""}`);
    onClose();
  };
  const footer = clearing.busy
    ? html`<button class="button" onClick=${() => (stopped.current = true)}>Stop</button>`
    : html`<button class="button" onClick=${onClose}>Keep them</button>
        <button class="button button-danger" disabled=${!found} onClick=${clear}>
          ${found ? `Delete ${text}…` : "Nothing to delete"}
        </button>`;
  return html`<${Dialog} title=${`Clear queue ${name}`} onClose=${clearing.busy ? () => {} : onClose} footer=${footer}>
    <${Failure} error=${clearing.error ?? counted.error} />
    <${Field} label="Delete" type="select" options=${OPTIONS} value=${kind} onInput=${setKind} disabled=${clearing.busy} />
    ${clearing.busy
      ? html`<${Progress}
          share=${more || !found ? null : deleted / found}
          label=${`${count(deleted)} of ${text} deleted`}
        />`
      : html`<p aria-live="polite">${counted.data ? (found ? `${text} match.` : "No job matches.") : "Counting…"}</p>`}
  </${Dialog}>`;
}
