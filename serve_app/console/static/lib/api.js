// Calls of the HTTP API, with the key of this tab, and what becomes of them.

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

/** What a proxy answers in the place of a service that is away. */
const OF_PROXIES = new Set([502, 503, 504]);

/** The answer as it is, of a status below 400. Raises ApiError, Unreachable, and AbortError. */
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

/** What is in the answer, which is JSON or nothing. */
export async function call(path, { json, ...options } = {}) {
  const body = json === undefined ? options.body : JSON.stringify(json);
  const headers = json === undefined ? {} : { "Content-Type": "application/json" };
  const answer = await request(path, { ...options, body, headers: { ...headers, ...options.headers } });
  return answer.status === 204 ? null : answer.json();
}

/** A path with a query of the values that are given. */
export function withQuery(path, values) {
  const query = new URLSearchParams(
    Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== ""),
  );
  return query.size ? `${path}?${query}` : path;
}

/** A path of the API: each part in it as one segment. */
export function path(...parts) {
  return parts.map(encodeURIComponent).join("/");
}

/** A picture's URL from a result, on our own origin, wherever the service says that it is. */
export function pictureUrl(url) {
  const at = url.indexOf("/files/");
  return at < 0 ? "" : url.slice(at + 1);
}

/** All pages of a list. */
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
