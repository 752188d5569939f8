// The form of a merge patch for payloads, and what it does to one of them.
import { html } from "../../lib/html.js";
import { mergePatch } from "../../lib/json.js";
import { Diff } from "../../parts/diff.js";
import { Field } from "../../parts/form.js";
import { Failure } from "../../parts/states.js";
import { Text } from "../../parts/text.js";

export function Patch({ text, patch, onInput, sample }) {
  const { data: job, error } = sample;
  const isJson = job && job.content_type === "application/json" && !job.payload_base64;
  return html`<${Field}
      type="textarea"
      label="Merge patch"
      value=${text}
      onInput=${onInput}
      error=${patch.error}
      spellcheck=${false}
      hint=${'Fields given here replace those of the payload, and null removes one: {"region": "eu", "debug": null}'}
    />
    ${error && html`<${Failure} error=${error} />`}
    ${job &&
    html`<section aria-label="What the patch changes" class="stack">
      <h3>What changes in <code><${Text} value=${job.id} max=${60} /></code></h3>
      ${!isJson && html`<p class="hint">Its payload is not JSON: it cannot be patched, and this letter stays dead.</p>`}
      ${isJson && patch.error && html`<p class="hint">The patch is not JSON yet.</p>`}
      ${isJson && !patch.error && html`<${Diff} before=${job.payload} after=${mergePatch(job.payload, patch.value)} />`}
    </section>`}`;
}
