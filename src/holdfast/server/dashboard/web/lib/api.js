// Calls of the HTTP API. URLs are relative to the document, so any path prefix of a proxy works.
import { parseJson, stringifyJson } from "./json.js";
import { prefs } from "./prefs.js";

// Every failed call: a stable code, a message for people, and what to do about it.
export class ApiError extends Error {
  constructor({ status = 0, code, message, detail = {}, remedy = "" }) {
    super(message);
    this.name = "ApiError";
    Object.assign(this, { status, code, detail, remedy });
  }
}

const REMEDIES = {
  unreachable: "Check that the server runs and that this machine can reach it.",
  unauthenticated: "Sign in with a token.",
  forbidden: "Sign in with a token that has the scope named above.",
  overloaded: "Try again in a moment.",
  unavailable: "The store cannot be reached: check the database, then try again.",
  not_ready: "The server is still starting: try again in a moment.",
  stopping: "The server is stopping: try again in a moment.",
};

const signedOut = new Set();

// Calls the listener when a call is refused because nobody is signed in.
export const onSignedOut = (listener) => signedOut.add(listener);

// The path of an operation, each value encoded: v1`queues/${name}/pause`
export const v1 = (parts, ...values) =>
  `v1/${String.raw({ raw: parts }, ...values.map(encodeURIComponent))}`;

// The URL with its query. Empty values are left out, and arrays are repeated.
export function withQuery(path, query = {}) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== undefined && each !== null && each !== "") found.append(name, each);
    }
  }
  const text = found.toString();
  return text ? `${path}?${text}` : path;
}

export function headers(more = {}) {
  const { namespace } = prefs.get();
  return {
    "Holdfast-Dashboard": "1",
    ...(namespace && { "Holdfast-Namespace": namespace }),
    ...more,
  };
}

// Sends a request and returns the response, or raises an ApiError.
export async function send(method, path, { query, body, signal, accept } = {}) {
  const content = body === undefined ? {} : { "Content-Type": "application/json" };
  let response;
  try {
    response = await fetch(withQuery(path, query), {
      method,
      headers: headers({ Accept: accept ?? "application/json", ...content }),
      body: body === undefined ? undefined : stringifyJson(body),
      credentials: "same-origin",
      cache: "no-store",
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw problem(0, { code: "unreachable", message: "The server does not answer." });
  }
  if (response.ok) return response;
  const failure = await failureOf(response);
  if (response.status === 401) for (const listener of signedOut) listener(failure);
  throw failure;
}

const problem = (status, { code, message, detail }) =>
  new ApiError({
    status,
    code,
    message,
    detail,
    remedy: (detail && detail.remedy) || REMEDIES[code] || "",
  });

async function failureOf(response) {
  const { status } = response;
  try {
    const body = parseJson(await response.text());
    const found = body.error ?? body;
    if (typeof found.code === "string") return problem(status, found);
  } catch {
    // The answer is not the server's own: a proxy's, for example.
  }
  return problem(status, { code: `http_${status}`, message: `The server answered ${status}.` });
}

async function call(method, path, options) {
  const response = await send(method, path, options);
  const text = await response.text();
  return text ? parseJson(text) : null;
}

export const get = (path, query, options) => call("GET", path, { ...options, query });
export const post = (path, body = {}, options) => call("POST", path, { ...options, body });
export const put = (path, body, options) => call("PUT", path, { ...options, body });
export const patch = (path, body, options) => call("PATCH", path, { ...options, body });
export const del = (path, query, options) => call("DELETE", path, { ...options, query });

const quoted = (text) => `'${String(text).replaceAll("'", `'\\''`)}'`;

// The call as a command line for people. With `token` it has one, which stays a variable of their
// shell; the server's own user needs none.
export function asCurl(method, path, body, { token }) {
  const { namespace } = prefs.get();
  const parts = ["curl", ...(method === "GET" ? [] : ["-X", method])];
  parts.push(quoted(new URL(path, document.baseURI).href));
  if (token) parts.push("-H", '"Authorization: Bearer $HOLDFAST_TOKEN"');
  if (namespace) parts.push("-H", quoted(`Holdfast-Namespace: ${namespace}`));
  if (body !== undefined) {
    parts.push("-H", quoted("Content-Type: application/json"), "-d", quoted(stringifyJson(body)));
  }
  return parts.join(" ");
}
