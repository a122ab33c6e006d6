// What a job may name, asked for once in a while.

import { call } from "./api.js";
import * as session from "./session.js";

const FRESH_MS = 60_000;
const kept = new Map();

session.onChange(() => kept.clear());

function once(path) {
  const found = kept.get(path);
  if (found && Date.now() - found.at < FRESH_MS) return found.answer;
  const answer = call(path);
  kept.set(path, { at: Date.now(), answer });
  answer.catch(() => kept.delete(path));
  return answer;
}

/** Names of the models of a kind: checkpoints, loras, ... with their families. */
export async function models(kind) {
  const { models: found } = await once("v1/models");
  return found.filter((each) => each.kind === kind);
}

export async function samplers() {
  return (await once("v1/samplers")).samplers;
}

export async function schedulers() {
  return (await once("v1/schedulers")).schedulers;
}

export function nodeTypes() {
  return once("v1/object_info");
}

/** Ids of endpoints; null where the key may not list them, though it may use some. */
export async function endpointIds() {
  if (!session.may("endpoints")) return null;
  const { endpoints } = await once("v1/endpoints");
  return [...new Set(["default", ...endpoints.map((each) => each.id)])];
}
