// Puts dead letters back: counted first, at once or gradually, with their payloads edited or not.
import { get, post } from "../../lib/api.js";
import { count, plural } from "../../lib/format.js";
import { html, useRef, useState } from "../../lib/html.js";
import { parseJson } from "../../lib/json.js";
import { useAction, useResource } from "../../lib/resource.js";
import { showToast } from "../../lib/toasts.js";
import { Dialog, confirm } from "../../parts/dialog.js";
import { Field } from "../../parts/form.js";
import { Icon } from "../../parts/icon.js";
import { Progress } from "../../parts/progress.js";
import { Failure } from "../../parts/states.js";
import { Choices } from "../../parts/tabs.js";
import { fieldMessage } from "../queue/texts.js";
import { bodyOf, wordsOf } from "./filter.js";
import { Patch } from "./patch.js";

const AT_ONCE_MAX = 100;
const HOW = [["once", "At once"], ["slowly", "Gradually"]];
const DURATION = "Expected a duration such as 30s, 5m or 2h";

function patchOf(text) {
  try {
    return { value: parseJson(text), error: null };
  } catch (error) {
    return { value: null, error: `This is not JSON: ${error.message}` };
  }
}

// The call without its mode: letters, delay, edit and the bound of redrives.
function bodyFor(filter, form, patch) {
  return {
    ...bodyOf(filter),
    ...(form.delay.trim() && { delay: form.delay.trim() }),
    ...(form.most.trim() && { max_redrives: Number(form.most) || form.most }),
    ...(form.edits && { edit: patch.value }),
  };
}

// Puts back in steps, until none is left or `stopped`.
async function putBackNow(body, stopped, onProgress) {
  let total = 0;
  for (let more = true; more && !stopped.current; ) {
    const answer = await post("v1/dead/retry", body);
    total += answer.retried;
    onProgress(total);
    more = answer.more && answer.retried > 0;
  }
  return total;
}

// `count` is the number of letters as far as it is known; `edits` opens the form of the patch.
export function PutBack({ filter, count: expected, edits = false, onClose, onDone }) {
  const isOne = filter.ids?.length === 1;
  const [how, setHow] = useState(expected > AT_ONCE_MAX ? "slowly" : "once");
  const [form, setForm] = useState({ rate: "10/s", canary: false, wait: "10m", delay: "", most: "", edits, patch: "{\n  \n}" });
  const [done, setDone] = useState(0);
  const stopped = useRef(false);
  const patch = patchOf(form.patch);
  const counted = useResource(
    (signal) => post("v1/redrives", { ...bodyFor(filter, { ...form, delay: "", edits: false }), dry_run: true }, { signal }),
    [JSON.stringify(filter), form.most],
  );
  const sample = useResource((signal) => (form.edits ? readSample(filter, signal) : Promise.resolve(null)), [form.edits]);
  const body = bodyFor(filter, form, patch);
  const acting = useAction(
    () => {
      stopped.current = false;
      if (how === "once") return putBackNow(body, stopped, setDone);
      const { rate, canary, wait } = form;
      return post("v1/redrives", { ...body, canary, ...(rate.trim() && { rate: rate.trim() }), ...(canary && { canary_wait: wait }) });
    },
    { quiet: true },
  );
  const { found, more, capped } = counted.data ?? {};
  const text = counted.data ? `${more ? "at least " : ""}${plural(found, "letter")}` : "";
  const set = (name) => (value) => setForm({ ...form, [name]: value });
  const submit = async (event) => {
    event.preventDefault();
    const sure = found <= 1_000 || (await confirm({ title: `Put back ${text}?`, text: `Those ${wordsOf(filter)}.`, label: `Put back ${text}`, count: found }));
    const answer = sure && (await acting.run());
    if (answer === undefined || !sure) return;
    if (how === "once") showToast(`${plural(answer, "letter")} put back${stopped.current ? ", then stopped" : ""}`);
    else showToast("The redrive has started: its progress is on this page");
    onDone();
  };
  const messages = {
    rate: fieldMessage(acting.error, ["rate"], "Expected a rate such as 10/s or 100/m"),
    wait: fieldMessage(acting.error, ["canary_wait", "canary-wait"], DURATION),
    delay: fieldMessage(acting.error, ["delay"], DURATION),
    most: fieldMessage(counted.error ?? acting.error, ["max_redrives"]),
  };
  const error = counted.error ?? acting.error;
  const isBusy = acting.busy;
  const footer = isBusy && how === "once"
    ? html`<button class="button" onClick=${() => (stopped.current = true)}>Stop</button>`
    : html`<button class="button" onClick=${onClose}>${isOne ? "Leave it" : "Leave them"}</button>
        <button class="button button-primary" form="put-back" disabled=${isBusy || !found || (form.edits && patch.error)}>
          ${found ? `Put ${text} back` : counted.data ? "Nothing to put back" : "Counting…"}
        </button>`;
  return html`<${Dialog} wide=${form.edits} title=${isOne ? "Put back one dead letter" : "Put dead letters back"} onClose=${isBusy ? () => {} : onClose} footer=${footer}>
    ${error && !Object.values(messages).some(Boolean) && html`<${Failure} error=${error} />`}
    <p aria-live="polite">
      ${counted.data
        ? html`<strong>${text}</strong>${isOne ? "" : ` ${wordsOf(filter)}`} ${found === 1 ? "goes" : "go"} back to ${found === 1 ? "its queue" : "their queues"}, with all attempts again.`
        : "Counting…"}
      ${capped > 0 && html` <span class="hint">${count(capped)} others stay: they were put back too often.</span>`}
    </p>
    ${isBusy && how === "once" && html`<${Progress} share=${more || !found ? null : done / found} label=${`${count(done)} of ${text} put back`} />`}
    <form id="put-back" class="form" onSubmit=${submit}>
      ${!isOne && html`<${Choices} label="How" choices=${HOW} chosen=${how} onChoose=${setHow} />`}
      ${how === "slowly" && html`<${Gradually} form=${form} set=${set} messages=${messages} found=${found} />`}
      <div class="columns">
        <${Field} label="Delay" value=${form.delay} onInput=${set("delay")} error=${messages.delay} placeholder="none" hint="For example 5m, before it may start again." autocomplete="off" />
        ${!isOne &&
        html`<${Field} label="Skip letters that were put back this often" value=${form.most} onInput=${set("most")} error=${messages.most} placeholder="3" inputmode="numeric" hint="Keeps hopeless ones from going round." autocomplete="off" />`}
      </div>
      <${Field} type="checkbox" label="Change the payload first" value=${form.edits} onInput=${set("edits")} />
      ${form.edits && html`<${Patch} text=${form.patch} patch=${patch} onInput=${set("patch")} sample=${sample} />`}
    </form>
  </${Dialog}>`;
}

function Gradually({ form, set, messages, found }) {
  return html`<p class="hint"><${Icon} name="info" /> It runs in the background, goes on if this page is closed, and can be cancelled at any time.</p>
    <${Field} label="Rate" value=${form.rate} onInput=${set("rate")} error=${messages.rate} placeholder="as fast as possible" hint="For example 10/s or 100/m." autocomplete="off" />
    <${Field}
      type="checkbox"
      label="Try a few first"
      value=${form.canary}
      onInput=${set("canary")}
      hint=${`One letter in a hundred goes first${found ? `: ${plural(Math.max(1, Math.ceil(found / 100)), "letter")}` : ""}. The others follow if none of these dies of the same cause.`}
    />
    ${form.canary &&
    html`<${Field} label="Watch the first ones for" value=${form.wait} onInput=${set("wait")} error=${messages.wait} autocomplete="off" hint="If one dies of the same cause, the rest stays." />`}`;
}

// A letter to show what the patch does: the newest that matches.
async function readSample(filter, signal) {
  if (filter.ids) return get(`v1/jobs/${encodeURIComponent(filter.ids[0])}`, {}, { signal });
  const page = await get("v1/dead", { ...filter, limit: 1 }, { signal });
  return page.jobs[0] ?? null;
}
