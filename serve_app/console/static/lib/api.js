// Calls of the HTTP API with the key of this tab, and their errors.

import * as session from "./session.js";
import { noteAnswer, noteSilence } from "./online.js";

export class ApiError extends Error {
  constructor(status, body) {
    const error = body?.error ?? {};
    super(error.message ?? `The service answered with the status ${status}.`);
    this.status = status;
    this.type = error.type ?? "";
    this.details = error.details ?? "";
    this.fields = error.extra_info?.fields ?? [];
    this.nodeErrors = body?.node_errors ?? {};
  }
}

/** The service cannot be reached. */
export class Unreachable extends Error {
  constructor() {
    super("The service does not answer. It may be starting again; this page goes on once it is back.");
  }
}

const AT_ONCE = 4;
/** The statuses with which a proxy answers if the service is unavailable. */
const OF_PROXIES = new Set([502, 503, 504]);

/** Returns an answer with a successful status. Raises ApiError, Unreachable, AbortError. */
export async function request(path, { method = "GET", body, headers = {}, signal, key = session.key() } = {}) {
  let answer;
  try {
    answer = await fetch(path, {
      method,
      body,
      signal,
      headers: { ...headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) },
      credentials: "omit",
      cache: method === "GET" && !path.startsWith("files/") ? "no-store" : "default",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    noteSilence();
    throw new Unreachable();
  }
  if (answer.ok) {
    noteAnswer();
    return answer;
  }
  const content = await answer.json().catch(() => null);
  if (content === null && OF_PROXIES.has(answer.status)) {
    noteSilence();
    throw new Unreachable();
  }
  noteAnswer();
  const error = new ApiError(answer.status, content);
  if (error.status === 401 && key === session.key()) session.end("The key is no longer valid. Sign in with another one.");
  throw error;
}

/** Makes a call and returns the JSON of the answer; null for an answer without a body. */
export async function call(path, { json, ...options } = {}) {
  const body = json === undefined ? options.body : JSON.stringify(json);
  const headers = json === undefined ? {} : { "Content-Type": "application/json" };
  const answer = await request(path, { ...options, body, headers: { ...headers, ...options.headers } });
  return answer.status === 204 ? null : answer.json();
}

/** Returns a path with a query of the values that are not empty. */
export function withQuery(path, values) {
  const query = new URLSearchParams(
    Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== ""),
  );
  return query.size ? `${path}?${query}` : path;
}

/** Returns a path of the API with each part as one segment. */
export function path(...parts) {
  return parts.map(encodeURIComponent).join("/");
}

/** Returns the URL of a file relative to this page. Other origins of URLs in results are ignored. */
export function fileUrl(url) {
  const at = url.indexOf("/files/");
  return at < 0 ? "" : url.slice(at + 1);
}

/** Calls `act` with each item, with four calls at a time. */
export async function fewAtOnce(items, act) {
  const left = [...items];
  const next = async () => {
    while (left.length) await act(left.shift());
  };
  await Promise.all(Array.from({ length: AT_ONCE }, next));
}

/** Returns the items of all pages of a list. */
export async function all(start, member, { signal } = {}) {
  const found = [];
  let cursor;
  do {
    const page = await call(withQuery(start, { limit: 200, cursor }), { signal });
    found.push(...page[member]);
    cursor = page.next_cursor;
  } while (cursor);
  return found;
}
