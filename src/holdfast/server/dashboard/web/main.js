// The dashboard: signs in, then shows the page of the address inside the frame.
import { html, render, useEffect, useState } from "./lib/html.js";
import { match, useRoute, useTitle } from "./lib/router.js";
import { loadSession, useMay, useSession } from "./lib/session.js";
import { PAGES } from "./pages.js";
import SignIn from "./pages/signin.js";
import { Shell } from "./parts/shell.js";
import { Empty, ErrorBoundary, Failure, Loading } from "./parts/states.js";

const loaded = new Map();

// Loads everything anew if the server has other files than this page: it was updated while the page
// was open.
async function reloadIfOutdated() {
  const hash = import.meta.url.split("/").at(-2);
  const response = await fetch(new URL(".", location.href), { cache: "no-store" });
  if (response.ok && !(await response.text()).includes(`/${hash}/`)) location.reload();
}

// A page that cannot be loaded is null. Another page than the first is a chance to look for an
// update.
async function loadPage(page) {
  const isFirst = loaded.size === 0;
  loaded.set(page, await page.load().then((module) => module.default, () => null));
  if (!isFirst) reloadIfOutdated().catch(() => {});
}

// The component of a page: undefined while it is loaded, null if that failed.
function usePage(page) {
  const [, redraw] = useState(0);
  useEffect(() => {
    if (!page || loaded.get(page)) return;
    loadPage(page).then(() => redraw((times) => times + 1));
  }, [page]);
  return loaded.get(page);
}

function findPage(path) {
  for (const page of PAGES) {
    const params = match(page.path, path);
    if (params) return { page, params };
  }
  return { page: null, params: {} };
}

function Content({ page, params, path, query }) {
  const may = useMay();
  const Page = usePage(page);
  useTitle(page ? page.title : "Not found");
  if (!page) {
    return html`<${Empty} title="There is no such page">
      The address ends in <code>${path}</code>. Choose a page on the left.
    </${Empty}>`;
  }
  if (!may.see(page.scope)) {
    return html`<${Empty} title="This token may not see this page">
      It needs the scope <code>${page.scope}</code>.
    </${Empty}>`;
  }
  if (Page === null) {
    const message = "This page could not be loaded.";
    const remedy = "Check the connection to the server, then try again.";
    return html`<${Failure} error=${{ message, remedy }} retry=${() => location.reload()} />`;
  }
  if (Page === undefined) return html`<${Loading} what="page" />`;
  return html`<${ErrorBoundary} key=${path}><${Page} key=${path} params=${params} query=${query} /></${ErrorBoundary}>`;
}

function App() {
  const { state, error, view } = useSession();
  const { path, query } = useRoute();
  const { page, params } = findPage(path);
  useEffect(() => {
    loadSession();
  }, []);
  // A failure of the first call may pass: the server starts, or the network comes back.
  useEffect(() => {
    const timer = state === "failed" && setInterval(loadSession, 3_000);
    return () => clearInterval(timer);
  }, [state]);
  if (state === "loading") return html`<main class="alone"><${Loading} what="Holdfast" /></main>`;
  if (state === "out") return html`<${SignIn} error=${error} />`;
  if (state === "failed") {
    return html`<main class="alone"><${Failure} error=${error} retry=${loadSession} /></main>`;
  }
  return html`<${Shell} page=${page} path=${path}>
    <${Content} key=${view.namespace} page=${page} params=${params} path=${path} query=${query} />
  </${Shell}>`;
}

render(html`<${App} />`, document.getElementById("app"));
