// The frame of every page: navigation by scope, namespace, freshness, theme, times, key help.
import { html, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { shortcuts, useKey } from "../lib/keyboard.js";
import { usePref } from "../lib/prefs.js";
import { go, href } from "../lib/router.js";
import { signOut, switchNamespace, useMay, useSession } from "../lib/session.js";
import { useAction } from "../lib/resource.js";
import { useStore } from "../lib/store.js";
import { PAGES } from "../pages.js";
import { ConfirmHost, Dialog } from "./dialog.js";
import { Field } from "./form.js";
import { Freshness, StaleNotice } from "./freshness.js";
import { Icon, Mark } from "./icon.js";
import { Key, Text } from "./text.js";
import { Toasts } from "./toast.js";

// The area of a page, to which the styles of its pages are limited: "area-jobs" for "/jobs/:id".
const areaOf = (page) => `area-${page?.path.split("/")[1] || "overview"}`;

export function Shell({ page, path, children }) {
  const main = useRef(null);
  const [menu, setMenu] = useState(false);
  const [help, setHelp] = useState(false);
  const may = useMay();
  const pages = PAGES.filter(({ icon, scope }) => icon && may.see(scope));
  useKey("?", "Show the keys", () => setHelp(true));
  // A new page begins at its top, and the keyboard goes on there.
  const before = useRef(path);
  useLayoutEffect(() => {
    if (before.current === path) return;
    before.current = path;
    setMenu(false);
    scrollTo(0, 0);
    main.current.focus({ preventScroll: true });
  }, [path]);
  const skip = (event) => {
    event.preventDefault();
    main.current.focus();
  };
  return html`<a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <div class="shell">
      <header class="side">
        <div class="brand">
          <a href=${href("/")}><${Mark} size=${20} />Holdfast</a>
          <button
            class="button button-quiet menu-button"
            aria-expanded=${menu ? "true" : "false"}
            aria-controls="menu"
            onClick=${() => setMenu(!menu)}
          ><${Icon} name=${menu ? "close" : "menu"} /><span class="sr-only">Menu</span></button>
        </div>
        <div id="menu" class=${menu ? "menu menu-open" : "menu"}>
          <nav aria-label="Pages">
            <ul>
              ${pages.map((each) => html`<${NavEntry} key=${each.path} entry=${each} page=${page} />`)}
            </ul>
          </nav>
          <${Caller} onHelp=${() => setHelp(true)} />
        </div>
      </header>
      <main id="main" class=${areaOf(page)} tabindex="-1" ref=${main}>
        <${StaleNotice} />
        ${children}
      </main>
    </div>
    ${help && html`<${KeyHelp} onClose=${() => setHelp(false)} />`}
    <${ConfirmHost} />
    <${Toasts} />`;
}

function NavEntry({ entry, page }) {
  const { path, title, icon, key } = entry;
  useKey(`g ${key}`, title, () => go(path));
  const current = page && (page.path === path || page.within === path);
  return html`<li>
    <a href=${href(path)} aria-current=${current ? "page" : undefined}><${Icon} name=${icon} />${title}</a>
  </li>`;
}

const THEMES = [["auto", "as the system"], ["light", "light"], ["dark", "dark"]];
const TIMES = [["relative", "relative"], ["local", "local time"], ["utc", "UTC"]];

// The caller, and the choices of this browser.
function Caller({ onHelp }) {
  const { view } = useSession();
  const [theme, setTheme] = usePref("theme");
  const [time, setTime] = usePref("time");
  const leaving = useAction(signOut);
  const switching = useAction(switchNamespace);
  const spaces = view.namespaces ?? [];
  return html`<div class="caller">
    ${spaces.length > 1 &&
    html`<${Field}
      label="Namespace"
      type="select"
      options=${spaces}
      value=${view.namespace}
      onInput=${switching.run}
      disabled=${switching.busy}
    />`}
    <${Field} label="Theme" type="select" options=${THEMES} value=${theme} onInput=${setTheme} />
    <${Field} label="Times" type="select" options=${TIMES} value=${time} onInput=${setTime} />
    <p class="caller-name">
      <${Text} value=${view.name || "local user"} max=${40} />
      ${view.read_only && html`<span class="badge">read-only</span>`}
    </p>
    <p class="hint">Holdfast ${view.version}${view.engine && ` on ${view.engine.name}`}</p>
    <div class="actions">
      <button class="button button-quiet" onClick=${onHelp}>Keys <${Key} name="?" /></button>
      <a class="button button-quiet" href="v1/docs">API</a>
      ${view.signed_in &&
      html`<button class="button button-quiet" disabled=${leaving.busy} onClick=${leaving.run}>Sign out</button>`}
    </div>
  </div>`;
}

// The head of a page: title, freshness, and its actions as children. `parent` is [title, link].
export function PageHead({ title, parent, children }) {
  return html`<div class="page-head">
    <div class="page-title">
      ${parent && html`<a class="crumb" href=${parent[1]}>${parent[0]}</a>`}
      <h1>${title}</h1>
    </div>
    <${Freshness} />
    <div class="actions">${children}</div>
  </div>`;
}

function KeyHelp({ onClose }) {
  const known = useStore(shortcuts);
  const unique = [...new Map(known.map((each) => [each.keys, each])).values()];
  const sorted = unique.sort((a, b) => a.keys.length - b.keys.length);
  return html`<${Dialog} title="Keys" onClose=${onClose}>
    <dl class="keys">
      ${sorted.map(({ keys, text }) => html`<div key=${keys}><dt><${Key} name=${keys} /></dt><dd>${text}</dd></div>`)}
      <div><dt><${Key} name="Enter" /></dt><dd>Open the row</dd></div>
    </dl>
  </${Dialog}>`;
}
