// The state of a job, from the events of its event stream.

import { follow } from "../lib/stream.js";

const ENDS = new Set(["completed", "failed", "cancelled", "erased"]);

/** Calls `onChange(state)` with each event of the job until it has ended. */
export async function followJob(id, { signal, onChange }) {
  const state = { name: "queued", events: [], images: new Map(), asked: 0, progress: null, place: null, preview: null, message: "" };
  await follow(`v1/jobs/${encodeURIComponent(id)}/events`, {
    signal,
    isOver: () => ENDS.has(state.name),
    onEvent: (event) => {
      take(state, event);
      onChange(state);
    },
  });
  return state;
}

function take(state, { event, data }) {
  if (event === "progress") state.progress = data;
  else if (event === "preview") state.preview = `data:image/jpeg;base64,${data.jpeg}`;
  else if (event === "queued") state.place = data;
  else takeStored(state, event, data);
}

function takeStored(state, event, { time, data }) {
  state.events.push({ name: event, time, data });
  if (event === "submitted") state.asked = data.images;
  if (event === "started") Object.assign(state, { name: "running", place: null });
  if (event === "attempt_failed") Object.assign(state, { name: "queued", progress: null, preview: null });
  if (event === "image_stored") {
    state.images.set(data.index, data);
    state.preview = null;
  }
  if (ENDS.has(event)) Object.assign(state, { name: event, progress: null, place: null, preview: null, message: data.message ?? "" });
}
