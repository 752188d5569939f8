// Creates a token and shows its text once.
import { post } from "../../lib/api.js";
import { html, useState } from "../../lib/html.js";
import { useAction } from "../../lib/resource.js";
import { useMay, useSession } from "../../lib/session.js";
import { CopyButton } from "../../parts/copy.js";
import { Dialog } from "../../parts/dialog.js";
import { Field, Form, errorOf } from "../../parts/form.js";
import { Icon } from "../../parts/icon.js";
import { useReload } from "../../parts/listing.js";

const SCOPES = [
  ["produce", "Enqueue jobs and read them by their id."],
  ["consume", "Lease and settle jobs: what a worker needs."],
  ["observe", "Read everything, change nothing."],
  ["operate", "All of these, and act on jobs, queues, schedules and workers."],
  ["admin", "All of that, and tokens, quotas and the audit log."],
  ["run-commands", "Also enqueue commands and webhooks, which run on the workers' machines."],
];
const EXPIRIES = [
  ["1d", "1 day"],
  ["7d", "7 days"],
  ["30d", "30 days"],
  ["90d", "90 days"],
  ["365d", "1 year"],
  ["never", "never, until it is revoked"],
  ["other", "other…"],
];
const FIELDS = ["name", "prefix", "expires", "namespace", "scopes"];

export function CreateToken({ onClose }) {
  const reload = useReload();
  const may = useMay();
  const { view } = useSession();
  const [values, setValues] = useState({ name: "", prefix: "", namespace: view.namespace, expires: "90d", other: "", aws: false });
  const [scopes, setScopes] = useState([]);
  const set = (name) => (value) => setValues((all) => ({ ...all, [name]: value }));
  const [made, setMade] = useState(null);
  const creating = useAction(
    () =>
      post("v1/tokens", {
        name: values.name.trim(),
        scopes,
        namespace: values.namespace,
        prefix: values.prefix.trim(),
        expires: values.expires === "other" ? values.other.trim() : values.expires,
        aws: values.aws,
      }),
    { quiet: true },
  );
  if (made) return html`<${Made} made=${made} onClose=${onClose} />`;
  const submit = async () => {
    const answer = await creating.run();
    if (answer === undefined) return;
    reload();
    setMade(answer);
  };
  const { error } = creating;
  const toggle = (scope) => (on) => setScopes(on ? [...scopes, scope] : scopes.filter((each) => each !== scope));
  // Only a token for all namespaces can name others.
  const spaces = view.namespaces?.length > 1 ? [...view.namespaces, ["*", "all namespaces"]] : [];
  return html`<${Dialog} title="Create a token" onClose=${onClose} footer="">
    <${Form}
      submit="Create the token"
      busy=${creating.busy || scopes.length === 0}
      error=${error}
      fields=${FIELDS}
      onSubmit=${submit}
      onCancel=${onClose}
    >
      <${Field} label="Name" value=${values.name} onInput=${set("name")} placeholder="mailer" required hint="Of the program or person that uses it, for the audit log: letters, digits, spaces and _ . @ : / -" error=${errorOf(error, "name")} autocomplete="off" />
      <fieldset>
        <legend>Scopes</legend>
        ${SCOPES.filter(([scope]) => may.see(scope)).map(
          ([scope, does]) => html`<${Field} key=${scope} type="checkbox" label=${scope} hint=${does} value=${scopes.includes(scope)} onInput=${toggle(scope)} />`,
        )}
        ${errorOf(error, "scopes") && html`<p class="field-error">${error.message}</p>`}
      </fieldset>
      <${Field} label="Only queues that begin with" value=${values.prefix} onInput=${set("prefix")} placeholder="all queues" error=${errorOf(error, "prefix")} autocomplete="off" />
      ${spaces.length > 0 && html`<${Field} label="Namespace" type="select" options=${spaces} value=${values.namespace} onInput=${set("namespace")} />`}
      <div class="fields">
        <${Field} label="Expires after" type="select" options=${EXPIRIES} value=${values.expires} onInput=${set("expires")} error=${values.expires === "other" ? undefined : errorOf(error, "expires")} />
        ${values.expires === "other" && html`<${Field} label="Lifetime" value=${values.other} onInput=${set("other")} placeholder="12h" required hint="For example 12h, 3d or 4w." error=${errorOf(error, "expires")} autocomplete="off" />`}
      </div>
      <${Field} type="checkbox" label="Access key for clients of Amazon SQS" hint="Two parts, with which AWS clients sign their requests." value=${values.aws} onInput=${set("aws")} />
    </${Form}>
  </${Dialog}>`;
}

// The secret is in this dialog only: the page keeps it nowhere else.
function Made({ made, onClose }) {
  const isKey = made.secret_access_key !== undefined;
  const parts = isKey
    ? [["Access key id", made.access_key_id], ["Secret access key", made.secret_access_key]]
    : [["Token", made.token]];
  const footer = html`<button class="button button-primary" onClick=${onClose}>Done, I have copied it</button>`;
  return html`<${Dialog} title=${`The new token: ${made.name}`} onClose=${onClose} footer=${footer}>
    <div class="notice notice-warn">
      <${Icon} name="warn" />
      <div class="notice-text"><strong>Copy it now: it cannot be shown again.</strong></div>
    </div>
    ${parts.map(
      ([label, text]) => html`<div key=${label} class="secret">
        <p class="hint">${label}</p>
        <div class="command"><code>${text}</code><${CopyButton} text=${text} /></div>
      </div>`,
    )}
  </${Dialog}>`;
}
