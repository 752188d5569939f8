// Live data: one stream of GET /v1/live for all topics that the page shows at the moment.
// A topic is a snapshot, then merge patches. The stream pauses while the tab is hidden, and
// reconnects with growing, random delays. A server without /v1/live is asked for the overview.
import { get, send } from "./api.js";
import { instant } from "./clock.js";
import { useEffect, useState } from "./html.js";
import { mergePatch, parseJson } from "./json.js";
import { createStore } from "./store.js";

const SILENCE_MS = 40_000;
const HIDDEN_MS = 5_000;
const POLL_MS = 2_000;
const DELAY_MS = [500, 15_000];
const KEPT_MAX = 20;
const KEPT_SIZE_MAX = 100_000; // characters of JSON: a job may have megabytes of errors and output

// state: idle · connecting · live · waiting (for the next attempt, at `retryAt`) · paused
export const connection = createStore({ state: "idle", asOf: null, retryAt: null, error: null });

// name → {store, users, size}: small ones without users are kept for a while
const topics = new Map();
const EMPTY = { data: null, asOf: null, gone: null };

let stream = null; // AbortController of the running stream
let timer = null;
let failures = 0;
let polls = false;

const isWanted = () => [...topics.values()].some((topic) => topic.users > 0);
const wantedNames = () => [...topics].filter(([, topic]) => topic.users > 0).map(([name]) => name);

// The data of a topic: {data, asOf, gone}. `data` is null until the first snapshot arrives, and
// `gone` is the {code, message} if its subject does not exist or may not be read.
export function useLive(name) {
  const [value, setValue] = useState(() => topics.get(name)?.store.get() ?? EMPTY);
  useEffect(() => {
    const topic = topics.get(name) ?? { store: createStore(EMPTY), users: 0, size: 0 };
    topics.delete(name);
    topics.set(name, topic); // the latest are last
    topic.users += 1;
    setValue(topic.store.get());
    const unwatch = topic.store.watch(setValue);
    restart();
    return () => {
      unwatch();
      topic.users -= 1;
      forgetOld();
      restart();
    };
  }, [name]);
  return value;
}

// Connects again at once, with what the caller may see now.
export function reconnect({ forget = false } = {}) {
  if (forget) for (const topic of topics.values()) topic.store.set(EMPTY);
  failures = 0;
  polls = false;
  restart();
}

function forgetOld() {
  for (const [name, topic] of topics) {
    const isKept = topics.size <= KEPT_MAX && topic.size <= KEPT_SIZE_MAX;
    if (topic.users === 0 && !isKept) topics.delete(name);
  }
}

function restart(delay = 20) {
  clearTimeout(timer);
  stream?.abort();
  stream = null;
  if (!isWanted()) return connection.update({ state: "idle", retryAt: null, error: null });
  if (document.hidden) return connection.update({ state: "paused", retryAt: null });
  timer = setTimeout(run, delay);
}

async function run() {
  const mine = (stream = new AbortController());
  if (connection.get().state !== "waiting") connection.update({ state: "connecting" });
  let failure = null;
  try {
    await (polls ? poll(mine) : listen(mine));
  } catch (error) {
    failure = error;
  }
  if (mine !== stream) return; // replaced by another one
  stream = null;
  if (failure?.status === 401) return connection.update({ state: "idle", error: failure });
  if (failure?.status === 404 && !polls) {
    polls = true;
    return restart(0);
  }
  failures += 1;
  const [least, most] = DELAY_MS;
  const delay = Math.min(most, least * 2 ** Math.min(failures - 1, 10)) * (0.5 + Math.random() / 2);
  connection.update({ state: "waiting", retryAt: Date.now() + delay, error: failure });
  timer = setTimeout(run, delay);
}

async function listen(mine) {
  const query = { topic: wantedNames() };
  const options = { query, signal: mine.signal, accept: "text/event-stream" };
  const response = await send("GET", "v1/live", options);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let silence = null;
  try {
    for (;;) {
      silence = setTimeout(() => mine.abort(), SILENCE_MS);
      const { done, value } = await reader.read();
      clearTimeout(silence);
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) take(block);
    }
  } finally {
    clearTimeout(silence);
    reader.cancel().catch(() => {});
  }
}

function take(block) {
  const fields = { event: "message", data: "" };
  for (const line of block.split("\n")) {
    const at = line.indexOf(":");
    const name = line.slice(0, at);
    if (name in fields) fields[name] = line.slice(at + 1).trimStart();
  }
  if (!fields.data) return;
  accept(fields.event, parseJson(fields.data), fields.data.length);
  failures = 0;
}

function accept(event, { topic: name, as_of: asOf, data, patch, code, message }, size = 0) {
  const topic = topics.get(name);
  if (topic) topic.size = event === "change" ? topic.size + size : size;
  if (event === "snapshot") topic?.store.set({ data, asOf, gone: null });
  else if (event === "gone") topic?.store.set({ data: null, asOf, gone: { code, message } });
  else if (event === "change" && topic) {
    const before = topic.store.get();
    topic.store.set({ data: mergePatch(before.data, patch), asOf, gone: null });
  }
  const known = instant(asOf) === null ? connection.get().asOf : asOf;
  connection.update({ state: "live", asOf: known, retryAt: null, error: null });
}

async function poll(mine) {
  for (;;) {
    for (const topic of wantedNames()) {
      if (topic === "overview") {
        const data = await get("v1/overview", {}, { signal: mine.signal });
        accept("snapshot", { topic, as_of: data.as_of, data });
      } else {
        const message = "This server has no live updates for this page.";
        accept("gone", { topic, code: "unknown_path", message });
      }
    }
    failures = 0;
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    if (mine.signal.aborted) return;
  }
}

let hiding = null;
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  if (document.hidden) hiding = setTimeout(restart, HIDDEN_MS);
  else if (stream === null) reconnect();
});
addEventListener("online", () => reconnect());
