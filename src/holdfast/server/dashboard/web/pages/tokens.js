// Tokens: who may do what over HTTP. The text of a token is shown once, when it is created.
import { del, v1 } from "../lib/api.js";
import { instant, useNow } from "../lib/clock.js";
import { plural } from "../lib/format.js";
import { html, useMemo, useState } from "../lib/html.js";
import { useMay, useSession } from "../lib/session.js";
import { ActButton } from "../parts/act.js";
import { AsOf, ListBody, useList } from "../parts/listing.js";
import { PageHead } from "../parts/shell.js";
import { Empty } from "../parts/states.js";
import { Table } from "../parts/table.js";
import { Text, Time } from "../parts/text.js";
import { CreateToken } from "./tokens/create.js";
import { SignInFirst } from "./tokens/sign_in.js";

const SOON_MS = 7 * 86_400_000;

function Expiry({ value }) {
  const at = useNow(60_000);
  const time = instant(value);
  if (time === null) return html`<span class="badge badge-warn" title="It is valid until it is revoked">never</span>`;
  if (time <= at) return html`<span class="badge badge-critical">expired</span> <${Time} value=${value} />`;
  return html`<span class=${time - at < SOON_MS ? "soon" : ""}><${Time} value=${value} /></span>`;
}

const COLUMNS = [
  {
    key: "name",
    title: "Token",
    sort: (row) => row.name,
    cell: (row) => html`<span class="facts-line">
        <span class="row-name"><${Text} value=${row.name} max=${80} /></span>
        ${row.parent !== null && html`<span class="badge">session</span>`}
      </span>
      <span class="hint id"><${Text} value=${row.id} max=${40} /></span>
      <span class="narrow hint"><${Text} value=${row.scopes.join(", ")} max=${80} /></span>`,
  },
  {
    key: "scopes",
    title: "Scopes",
    from: "wide",
    cell: (row) => html`<span class="facts-line">${row.scopes.map((scope) => html`<span key=${scope} class=${scope === "admin" || scope === "run-commands" ? "badge badge-warn" : "badge"}>${scope}</span>`)}</span>`,
  },
  {
    key: "limits",
    title: "Restricted to",
    from: "wide",
    cell: (row) => html`${row.namespace === "*" ? "all namespaces" : html`<span class="zero">namespace </span><${Text} value=${row.namespace} max=${80} />`}
      ${row.prefix && html`<span class="zero"> · queues </span><code><${Text} value=${row.prefix} max=${80} />*</code>`}`,
  },
  {
    key: "created",
    title: "Created",
    from: "wide",
    sort: (row) => instant(row.created_at),
    cell: (row) => html`<${Time} value=${row.created_at} />${row.by && html`<span class="hint"> by <${Text} value=${row.by} max=${60} /></span>`}`,
  },
  { key: "expires", title: "Expires", from: "medium", sort: (row) => instant(row.expires_at), cell: (row) => html`<${Expiry} value=${row.expires_at} />` },
  { key: "acts", title: html`<span class="sr-only">Acts</span>`, cell: (row) => html`<${Acts} row=${row} />` },
];

function Acts({ row }) {
  const may = useMay();
  if (!may.act("admin")) return null;
  const isSession = row.parent !== null;
  return html`<span class="row-acts"><${ActButton}
    label=${isSession ? "End…" : "Revoke…"}
    name=${row.name}
    act=${() => del(v1`tokens/${row.id}`)}
    ask=${{
      title: isSession ? `End this session of ${row.name}?` : `Revoke the token ${row.name}?`,
      text: isSession
        ? "The browser that uses it is signed out."
        : "Programs that use it are refused at once, by other servers within a second; its sessions end. This cannot be undone.",
      label: isSession ? "End the session" : "Revoke the token",
      danger: true,
    }}
    done=${isSession ? `Ended a session of ${row.name}` : `Revoked ${row.name}`}
  /></span>`;
}

export default function Tokens() {
  const { view } = useSession();
  // A caller without a token cannot list or create any, whatever its scopes.
  if (!view.signed_in) return html`<${PageHead} title="Tokens" /><${SignInFirst} />`;
  return html`<${TokenList} />`;
}

function TokenList() {
  const list = useList("v1/tokens", "tokens", (row) => row.id, { query: { sessions: true } });
  const [adds, setAdds] = useState(false);
  const [sessions, setSessions] = useState(false);
  const may = useMay();
  const all = list.rows ?? [];
  const shown = useMemo(() => all.filter(({ parent }) => sessions || parent === null), [list.rows, sessions]);
  const hidden = all.filter(({ parent }) => parent !== null).length;
  return html`<${PageHead} title="Tokens">
      <${AsOf} list=${list} />
      ${may.act("admin") && html`<button class="button button-primary" onClick=${() => setAdds(true)}>Create a token</button>`}
    </${PageHead}>
    <${ListBody} list=${list} what="tokens">
      <section class="panel" aria-labelledby="tokens-title">
        <div class="panel-head">
          <h2 id="tokens-title">${plural(all.length - hidden, "token")}</h2>
          ${hidden > 0 &&
          html`<label class="check">
            <input type="checkbox" checked=${sessions} onChange=${() => setSessions(!sessions)} />Show ${plural(hidden, "session")} of this dashboard
          </label>`}
        </div>
        <${Table}
          caption="Tokens with their scopes and expiry"
          columns=${COLUMNS}
          rows=${shown}
          keyOf=${(row) => row.id}
          order=${["name", "asc"]}
          empty=${html`<${Empty} title="No tokens yet" command="holdfast token create mailer --scopes produce --prefix mail.">
            A token lets a program use the API with the scopes it needs, and no more. Give each program its own.
          </${Empty}>`}
        />
      </section>
      ${adds && html`<${CreateToken} onClose=${() => setAdds(false)} />`}
    </${ListBody}>`;
}
