// Hash routes with a query: #/queues/mail · #/jobs?state=dead&queue=mail
import { createStore, useStore } from "./store.js";
import { useEffect } from "./html.js";
import { withQuery } from "./api.js";

// {path: "/jobs", query: {state: "dead"}}; a repeated name of the query is an array.
export const route = createStore(read());

export const useRoute = () => useStore(route);

function read() {
  const [path, search = ""] = location.hash.replace(/^#/, "").split(/\?(.*)/s);
  const query = Object.create(null);
  for (const [name, value] of new URLSearchParams(search)) {
    query[name] = name in query ? [query[name], value].flat() : value;
  }
  return { path: path || "/", query };
}

addEventListener("hashchange", () => route.set(read()));

// The address of a page, for links: href("/jobs", {state: "dead"})
export const href = (path, query) => `#${withQuery(path, query)}`;

// The path of a page, each value encoded: to`/queues/${name}`
export const to = (parts, ...values) =>
  String.raw({ raw: parts }, ...values.map(encodeURIComponent));

// Goes to a page. With `replace` the present one is not kept in the history of the browser.
export function go(path, query, { replace = false } = {}) {
  const target = href(path, query);
  if (target === location.hash) return;
  if (replace) history.replaceState(null, "", target);
  else location.hash = target;
  // At once: the event comes later, after the next key perhaps.
  route.set(read());
}

// Changes some values of the query of this page; empty ones are removed.
export function changeQuery(changes, { replace = true } = {}) {
  const { path, query } = route.get();
  go(path, { ...query, ...changes }, { replace });
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// The parameters if the path has the pattern, else null: match("/queues/:name", "/queues/mail")
export function match(pattern, path) {
  const wanted = pattern.split("/");
  const parts = path.replace(/(.)\/$/, "$1").split("/");
  if (wanted.length !== parts.length) return null;
  const params = {};
  for (const [i, name] of wanted.entries()) {
    if (name.startsWith(":")) params[name.slice(1)] = decoded(parts[i]);
    else if (name !== parts[i]) return null;
  }
  return params;
}

// Names the page in the browser's tab and history.
export function useTitle(title) {
  useEffect(() => {
    document.title = `${title} · Holdfast`;
  }, [title]);
}
