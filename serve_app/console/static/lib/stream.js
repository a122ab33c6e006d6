// Reads an event stream with the key in a header, which a browser's EventSource cannot send.

import { EventParser } from "../pure/sse.js";
import { ApiError, request } from "./api.js";

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 8000;
const PASSING = new Set([429, 500, 503]);

/**
 * Calls `onEvent({event, data, id})` with each event until the service answers 204, `isOver` returns true
 * after a connection has ended, or `signal` is aborted. After an interruption the stream continues with the
 * next event. Raises ApiError for an error that is not temporary.
 */
export async function follow(path, { signal, onEvent, isOver = () => false, onBreak = () => {} }) {
  let lastId = "";
  let pause_ms = FIRST_PAUSE_MS;
  while (!signal.aborted) {
    const parser = new EventParser();
    try {
      const headers = lastId ? { "Last-Event-ID": lastId } : {};
      const answer = await request(path, { signal, headers: { Accept: "text/event-stream", ...headers } });
      if (answer.status === 204) return;
      for await (const event of events(answer.body, parser)) {
        pause_ms = FIRST_PAUSE_MS;
        onEvent({ ...event, data: JSON.parse(event.data) });
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && !PASSING.has(error.status)) throw error;
    }
    lastId = parser.lastId || lastId;
    if (isOver()) return;
    onBreak();
    await pause(pause_ms, signal);
    pause_ms = Math.min(pause_ms * 2, LONGEST_PAUSE_MS);
  }
}

async function* events(body, parser) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield* parser.feed(value);
  }
}

function pause(time_ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, time_ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
