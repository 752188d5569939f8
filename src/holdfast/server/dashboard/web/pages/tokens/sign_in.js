// Managing tokens needs a token: the server's own user has none, and can sign in with one here.
import { html, useState } from "../../lib/html.js";
import { useAction } from "../../lib/resource.js";
import { signIn } from "../../lib/session.js";
import { CopyButton } from "../../parts/copy.js";
import { Field, Form } from "../../parts/form.js";

const COMMAND = "holdfast token create ops --scopes admin --expires 30d";

export function SignInFirst() {
  const [token, setToken] = useState("");
  const entering = useAction(signIn, { quiet: true });
  return html`<section class="panel sign-in-first" aria-labelledby="sign-in-title">
    <h2 id="sign-in-title">Tokens are managed with a token</h2>
    <p>
      This browser is admitted because it runs as the server's own user. That is enough for everything but
      tokens and commands, so that no program of yours can turn it into a token. Create one on the machine of
      the store, then sign in with it:
    </p>
    <div class="command"><code>${COMMAND}</code><${CopyButton} text=${COMMAND} /></div>
    <${Form} submit="Sign in" busy=${entering.busy || !token.trim()} error=${entering.error} onSubmit=${() => entering.run(token.trim())}>
      <${Field}
        label="Token with the scope admin"
        type="password"
        value=${token}
        onInput=${setToken}
        autocomplete="off"
        hint="It is exchanged for a session and not kept in this browser."
      />
    </${Form}>
  </section>`;
}
