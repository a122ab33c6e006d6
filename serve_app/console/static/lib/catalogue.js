// The models, samplers, node types and endpoints that a job may name. Answers are cached for a minute.

import { call, withQuery } from "./api.js";
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

/** Returns the models of a kind, such as checkpoints or loras, with their families. */
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

/** Returns the node types of an endpoint; none if its ComfyUI server has never been ready. */
export async function nodeTypes(endpoint) {
  try {
    return await once(withQuery("v1/object_info", { endpoint }));
  } catch (error) {
    if (error.status !== 404) throw error;
    return {};
  }
}

/** Returns the ids of endpoints; null if the key may not list endpoints. */
export async function endpointIds() {
  if (!session.may("endpoints")) return null;
  const { endpoints } = await once("v1/endpoints");
  return [...new Set(["default", ...endpoints.map((each) => each.id)])];
}
