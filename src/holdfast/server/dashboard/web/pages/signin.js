// Exchanges a token for a session. The token itself is not kept in the browser.
import { html, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { useAction } from "../lib/resource.js";
import { useTitle } from "../lib/router.js";
import { signIn } from "../lib/session.js";
import { CopyButton } from "../parts/copy.js";
import { Field, Form } from "../parts/form.js";
import { Mark } from "../parts/icon.js";
import { Failure } from "../parts/states.js";

const COMMAND = "holdfast token create me --scopes observe";

export default function SignIn({ error }) {
  const [token, setToken] = useState("");
  const entering = useAction(signIn, { quiet: true });
  useTitle("Sign in");
  // The attribute `autofocus` takes effect after the page is painted: the first keys would be lost.
  const main = useRef(null);
  useLayoutEffect(() => main.current.querySelector("[type=password]").focus(), []);
  const ended = error && !entering.error;
  return html`<main ref=${main} class="alone sign-in">
    <h1><${Mark} size=${28} />Holdfast</h1>
    ${ended && html`<${Failure} error=${{ message: "Your session has ended.", remedy: "Sign in again." }} />`}
    <${Form}
      submit="Sign in"
      busy=${entering.busy || !token.trim()}
      error=${entering.error}
      onSubmit=${() => entering.run(token.trim())}
    >
      <input hidden type="text" autocomplete="username" value="holdfast" readonly />
      <${Field}
        label="Token"
        type="password"
        value=${token}
        onInput=${setToken}
        autocomplete="current-password"
        hint="It is exchanged for a session and not kept in this browser."
      />
    </${Form}>
    <div class="sign-in-help">
      <p>No token yet? On a machine with access to the store:</p>
      <div class="command"><code>${COMMAND}</code><${CopyButton} text=${COMMAND} /></div>
      <p>The scope <code>observe</code> looks, <code>operate</code> also acts, and <code>admin</code> also manages tokens.</p>
    </div>
  </main>`;
}
