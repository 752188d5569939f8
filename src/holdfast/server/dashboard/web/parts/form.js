// Fields with label, hint and the server's validation errors.
import { visible } from "../lib/format.js";
import { html, useEffect, useId, useRef } from "../lib/html.js";
import { Text } from "./text.js";
import { Failure } from "./states.js";

// One field. `type` is "text", "number", "password", "textarea", "select" (with `options`, texts or
// [value, text]) or "checkbox". `onInput` gets the value, not the event.
export function Field({ label, hint, error, type = "text", value, onInput, options, ...more }) {
  const id = useId();
  const described = [hint && `${id}-hint`, error && `${id}-error`].filter(Boolean).join(" ");
  const common = {
    id,
    "aria-describedby": described || undefined,
    "aria-invalid": error ? "true" : undefined,
    ...more,
  };
  const changed = (event) => onInput(type === "checkbox" ? event.target.checked : event.target.value);
  const control = controlOf(type, common, value, changed, options);
  const isCheck = type === "checkbox";
  return html`<div class=${isCheck ? "field field-check" : "field"}>
    ${isCheck && control}
    <label for=${id}>${label}</label>
    ${!isCheck && control}
    ${hint && html`<p class="hint" id=${`${id}-hint`}>${hint}</p>`}
    ${error && html`<p class="field-error" id=${`${id}-error`}><${Text} value=${error} max=${300} /></p>`}
  </div>`;
}

function controlOf(type, common, value, changed, options) {
  if (type === "checkbox") {
    return html`<input type="checkbox" ...${common} checked=${value} onChange=${changed} />`;
  }
  if (type === "textarea") {
    return html`<textarea rows="6" ...${common} value=${value} onInput=${changed}></textarea>`;
  }
  if (type === "select") {
    return html`<select ...${common} value=${value} onChange=${changed}>
      ${options.map((each) => {
        const [key, text] = Array.isArray(each) ? each : [each, each];
        return html`<option value=${key} selected=${key === value}>${visible(text)}</option>`;
      })}
    </select>`;
  }
  return html`<input type=${type} ...${common} value=${value ?? ""} onInput=${changed} />`;
}

// Instead of a regular expression; the field's hint has an example.
const NOT_THE_FORM = "This does not have the expected form.";

// The message of an ApiError if it is about this field, else undefined.
export function errorOf(error, name) {
  if (!error) return undefined;
  const { message, detail = {} } = error;
  const named = detail.field === name || message.includes(`$.${name}\``) || message.includes(`"${name}"`);
  if (!named && !message.startsWith(`${name}:`) && !message.startsWith(`${name} `)) return undefined;
  return message.includes("matching regex") ? NOT_THE_FORM : message;
}

// A form with its buttons. Enter submits it, and an error is scrolled to; one that no field of `fields`
// shows is on top. Without `submit` its button is elsewhere, with the form's `id`: in the footer of a
// dialog.
export function Form({ id, onSubmit, error, fields = [], submit, busy, onCancel, children }) {
  const shown = error && !fields.some((name) => errorOf(error, name));
  const frame = useRef(null);
  const submitted = useRef(false);
  useEffect(() => {
    if (!error || !submitted.current) return;
    submitted.current = false;
    frame.current.querySelector(".field-error, [role=alert]")?.scrollIntoView({ block: "nearest" });
  }, [error]);
  return html`<form
    id=${id}
    ref=${frame}
    class="form"
    onSubmit=${(event) => {
      event.preventDefault();
      submitted.current = true;
      onSubmit();
    }}
  >
    ${shown && html`<${Failure} error=${error} />`}
    ${children}
    ${submit &&
    html`<div class="actions">
      <button class="button button-primary" disabled=${busy}>${submit}</button>
      ${onCancel && html`<button type="button" class="button" onClick=${onCancel}>Discard</button>`}
    </div>`}
  </form>`;
}
