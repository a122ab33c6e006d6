// Formats times, sizes and states as texts.

import { nameOf } from "./media.js";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
const AGO = [
  [60, "second", 1],
  [3600, "minute", 60],
  [86400, "hour", 3600],
  [Infinity, "day", 86400],
];

export function bytes(count) {
  const power = count < 1 ? 0 : Math.min(Math.floor(Math.log2(count) / 10), UNITS.length - 1);
  const value = count / 1024 ** power;
  return `${value < 10 && power ? value.toFixed(1) : Math.round(value)} ${UNITS[power]}`;
}

export function seconds(count) {
  if (count < 0.995) return `${Math.round(count * 1000)} ms`;
  if (count < 60) return `${count < 9.95 ? count.toFixed(1) : Math.round(count)} s`;
  const minutes = Math.floor(count / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(count % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function ago(time, now = Date.now()) {
  const past = Math.max(0, (now - new Date(time).getTime()) / 1000);
  if (past < 5) return "just now";
  const [, unit, size] = AGO.find(([limit]) => past < limit);
  const count = Math.floor(past / size);
  return `${count} ${unit}${count === 1 ? "" : "s"} ago`;
}

export function clock(time) {
  return new Date(time).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

export function date(time) {
  return new Date(time).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
}

export function number(value) {
  return value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 2 : 0 });
}

export function plural(count, name) {
  return `${number(count)} ${name}${count === 1 ? "" : "s"}`;
}

export const STATES = {
  queued: "Queued",
  running: "Running",
  completed: "Completed",
  failed: "Failed",
  cancelled: "Cancelled",
};

const EVENTS = {
  submitted: (data) => `Accepted by endpoint ${data.endpoint}`,
  started: (data) => (data.attempt > 1 ? `Attempt ${data.attempt} began` : "A worker began"),
  image_stored: (data) => `${nameOf(data)} is done`,
  attempt_failed: (data) => `Attempt ${data.attempt} failed: ${data.message}`,
  dispatch_failed: (data) => `No worker took it: ${data.message ?? data.failure}`,
  cancel_requested: () => "Cancelling was asked for",
  completed: (data) => `Completed with ${plural(data.images ?? 0, "result")}`,
  failed: (data) => `Failed: ${data.message}`,
  cancelled: () => "Cancelled",
  erased: () => "Erased",
};

/** Returns the text of a stored event, or its name if this page has no text for it. */
export function eventText(name, data) {
  const say = EVENTS[name];
  return say ? say(data) : name.replaceAll("_", " ");
}

/** Returns the time between two events for the timeline; empty for the first event. */
export function since(time, before) {
  return before === undefined ? "" : `+${seconds(Math.max(0, (new Date(time) - new Date(before)) / 1000))}`;
}
