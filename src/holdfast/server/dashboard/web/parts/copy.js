// Copying to the clipboard: a text, or a call as curl and as a command.
import { asCurl } from "../lib/api.js";
import { html, useEffect, useState } from "../lib/html.js";
import { useSession } from "../lib/session.js";
import { Icon } from "./icon.js";

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Without TLS browsers offer only this.
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "sr-only";
  const focused = document.activeElement;
  (focused?.closest("dialog") ?? document.body).append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
  focused?.focus();
  return undefined;
}

export function CopyButton({ text, label = "Copy", iconOnly = false }) {
  const [said, setSaid] = useState("");
  useEffect(() => {
    const timer = said && setTimeout(() => setSaid(""), 2_000);
    return () => clearTimeout(timer);
  }, [said]);
  const act = () => copy(text).then(() => setSaid("Copied"), () => setSaid("Not allowed"));
  return html`<button type="button" class="button button-quiet" onClick=${act} title=${label}>
    <${Icon} name=${said === "Copied" ? "check" : "copy"} />
    <span class=${iconOnly && !said ? "sr-only" : ""} aria-live="polite">${said || label}</span>
  </button>`;
}

// The same call for scripts: copy as curl, and as the command of the command line if there is one.
export function CopyCall({ method, path, body, command }) {
  const token = useSession().view.signed_in;
  return html`<span class="actions">
    <${CopyButton} text=${asCurl(method, path, body, { token })} label="Copy as curl" />
    ${command && html`<${CopyButton} text=${command} label="Copy as command" />`}
  </span>`;
}
