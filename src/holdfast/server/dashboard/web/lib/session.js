// The caller: name, namespace and scopes. What the scopes do not allow is not offered.
import { del, get, onSignedOut, post } from "./api.js";
import { setServerTime } from "./clock.js";
import { reconnect } from "./live.js";
import { prefs } from "./prefs.js";
import { createStore, useStore } from "./store.js";

// state: loading · in (with `view`, as GET /v1/session) · out (with `error` if it ended) · failed
export const session = createStore({ state: "loading", view: null, error: null });

onSignedOut((error) => {
  const before = session.get();
  if (before.state !== "out") {
    session.set({ state: "out", view: null, error: before.state === "in" ? error : null });
  }
});

function enter(view, sent) {
  setServerTime(view.time, sent);
  session.set({ state: "in", view, error: null });
  reconnect({ forget: true });
}

// Asks the server who the caller is. Without an answer it is "failed" and may be tried again.
export async function loadSession() {
  const sent = Date.now();
  try {
    enter(await get("v1/session"), sent);
  } catch (error) {
    if (error.status === 401) return;
    if (error.status === 403 && prefs.get().namespace) {
      prefs.update({ namespace: "" }); // the chosen namespace is no longer the caller's
      await loadSession();
      return;
    }
    session.set({ state: "failed", view: null, error });
  }
}

export async function signIn(token) {
  const sent = Date.now();
  prefs.update({ namespace: "" });
  enter(await post("v1/session", { token }), sent);
}

export async function signOut() {
  await del("v1/session");
  session.set({ state: "out", view: null, error: null });
  reconnect({ forget: true });
}

export async function switchNamespace(name) {
  prefs.update({ namespace: name });
  await loadSession();
}

// What the caller may do: see("admin") reads what needs the scope, act("operate") also changes
// something, which a server started with --read-only never allows.
function permissions({ view }) {
  const see = (scope) => view !== null && view.scopes.includes(scope);
  return { see, act: (scope = "operate") => see(scope) && !view.read_only };
}

// For components: const may = useMay(); may.act("operate") && html`<button>…`
export const useMay = () => permissions(useStore(session));

// The queue to name in a list of jobs: with a token for some queues only, the server lists the jobs
// of one at a time.
export const queueToName = (queue) => (session.get().view?.prefix ? { queue } : {});

export const useSession = () => useStore(session);
