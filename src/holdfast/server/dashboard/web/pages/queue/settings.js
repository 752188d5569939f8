// The settings of a queue: shown to everybody, changed with a difference to look at before saving.
import { patch, v1 } from "../../lib/api.js";
import { plural } from "../../lib/format.js";
import { html, useState } from "../../lib/html.js";
import { useAction } from "../../lib/resource.js";
import { useMay, useSession } from "../../lib/session.js";
import { Diff } from "../../parts/diff.js";
import { Dialog } from "../../parts/dialog.js";
import { CopyCall } from "../../parts/copy.js";
import { Field } from "../../parts/form.js";
import { Failure } from "../../parts/states.js";
import { Text } from "../../parts/text.js";
import { GROUPS, SETTINGS, lineOf } from "./fields.js";
import { fieldMessage } from "./texts.js";
import { Weights } from "./weights.js";

export function Settings({ queue, onAnswer }) {
  const may = useMay();
  return may.act("operate")
    ? html`<${Editor} queue=${queue} onAnswer=${onAnswer} />`
    : html`<div class="queue-settings">
        ${GROUPS.map(
          ([title, settings]) => html`<section key=${title} class="panel">
            <div class="panel-head"><h2>${title}</h2></div>
            <dl class="facts panel-body">
              ${settings.map(
                (setting) => html`<div key=${setting.name}>
                  <dt title=${setting.hint}>${setting.title}</dt>
                  <dd><${Text} value=${lineOf(setting, setting.read(queue))} max=${200} /></dd>
                </div>`,
              )}
            </dl>
          </section>`,
        )}
      </div>`;
}

const messageFor = (error, { name, aliases = [], instead }) => fieldMessage(error, [name, ...aliases], instead);

// The settings whose edited value differs from the stored one.
const changesOf = (queue, edits) =>
  SETTINGS.filter(
    (setting) =>
      setting.name in edits && lineOf(setting, edits[setting.name]) !== lineOf(setting, setting.read(queue)),
  );

function Editor({ queue, onAnswer }) {
  const { view } = useSession();
  const [edits, setEdits] = useState({});
  const [review, setReview] = useState(false);
  const changes = changesOf(queue, edits);
  const body = Object.fromEntries(changes.map(({ name, value }) => [name, value(edits[name])]));
  const saving = useAction(() => patch(v1`queues/${queue.name}`, body), {
    done: `Settings of queue ${queue.name} saved`,
    quiet: true,
  });
  const traits = view.engine?.traits ?? {};
  const offered = ({ trait }) => !trait || traits[trait] !== false;
  const save = async () => {
    const answer = await saving.run();
    setReview(false);
    if (!answer) return;
    setEdits({});
    onAnswer(answer);
  };
  const wrong = saving.error && SETTINGS.map((setting) => messageFor(saving.error, setting)).find(Boolean);
  const isRefused = saving.error && changes.length > 0;
  const submit = (event) => {
    event.preventDefault();
    if (changes.length > 0) setReview(true);
  };
  return html`<form onSubmit=${submit} class="stack" aria-label="Settings">
    ${saving.error && !wrong && html`<${Failure} error=${saving.error} />`}
    <div class="queue-settings">
      ${GROUPS.map(
        ([title, settings]) => html`<section key=${title} class="panel">
          <div class="panel-head"><h2>${title}</h2></div>
          <div class="panel-body form">
            ${settings.filter(offered).map(
              (setting) => html`<${Setting}
                key=${setting.name}
                setting=${setting}
                value=${setting.name in edits ? edits[setting.name] : setting.read(queue)}
                changed=${changes.includes(setting)}
                error=${messageFor(saving.error, setting)}
                onInput=${(value) => setEdits({ ...edits, [setting.name]: value })}
              />`,
            )}
          </div>
        </section>`,
      )}
    </div>
    <div class=${changes.length ? "save-bar save-bar-active" : "save-bar"}>
      ${isRefused && html`<span class="field-error">Not saved. <${Text} value=${wrong ?? saving.error.message} max=${200} /></span>`}
      <span class="hint">${changes.length ? `${plural(changes.length, "setting")} changed, not saved yet.` : "Changes apply at once, to all workers."}</span>
      <div class="actions">
        ${changes.length > 0 &&
        html`<button type="button" class="button" onClick=${() => setEdits({})}>Discard</button>`}
        <button class="button button-primary" disabled=${changes.length === 0}>Review changes…</button>
      </div>
    </div>
    </form>
    ${review &&
    html`<${Review} queue=${queue} changes=${changes} edits=${edits} body=${body} busy=${saving.busy} onSave=${save} onClose=${() => setReview(false)} />`}`;
}

function Setting({ setting, value, changed, error, onInput }) {
  const { title, hint, type, options, empty, inputmode } = setting;
  const label = html`${title}${changed && html`<span class="changed"> changed</span>`}`;
  if (type === "weights") {
    return html`<${Weights} label=${label} hint=${hint} error=${error} rows=${value} onInput=${onInput} />`;
  }
  return html`<${Field}
    label=${label}
    hint=${hint}
    error=${error}
    type=${type ?? (options ? "select" : "text")}
    options=${options}
    value=${value}
    onInput=${onInput}
    inputmode=${inputmode}
    placeholder=${empty}
    autocomplete="off"
    spellcheck=${false}
  />`;
}

function Review({ queue, changes, edits, body, busy, onSave, onClose }) {
  const footer = html`<button type="button" class="button" onClick=${onClose}>Back</button>
    <button type="button" class="button button-primary" disabled=${busy} onClick=${onSave}>
      Save ${plural(changes.length, "change")}
    </button>`;
  return html`<${Dialog} title=${`Change queue ${queue.name}?`} onClose=${onClose} footer=${footer}>
    <div class="review">
      ${changes.map((setting) => {
        const text = (value) => `${setting.title}: ${lineOf(setting, value)}`;
        return html`<${Diff} key=${setting.name} before=${text(setting.read(queue))} after=${text(edits[setting.name])} />`;
      })}
    </div>
    <${CopyCall} method="PATCH" path=${v1`queues/${queue.name}`} body=${body} />
  </${Dialog}>`;
}
