// The prompts of jobs. The list of jobs does not contain prompts, so a few jobs at a time are read.

import { call, fewAtOnce, path } from "../lib/api.js";
import * as session from "../lib/session.js";

const kept = new Map();

session.onChange(() => kept.clear());

export class Titles {
  #signal;

  constructor(signal) {
    this.#signal = signal;
  }

  /** Returns the prompt of a job, or the texts in its workflow; empty before `load`. */
  of(job) {
    return kept.get(job.request_id) ?? "";
  }

  /** Reads the prompts that are not cached. A job that cannot be read has no prompt. */
  async load(jobs) {
    await fewAtOnce(jobs.filter((job) => !kept.has(job.request_id)), (job) => this.#look(job));
  }

  async #look(job) {
    try {
      const { request } = await call(path("v1", "jobs", job.request_id), { signal: this.#signal });
      kept.set(job.request_id, textOf(job, request));
    } catch (error) {
      if (error.status === 404) kept.set(job.request_id, "");
    }
  }
}

function textOf(job, request) {
  if (job.flavour === "diffusion") return request.prompt || "Untitled";
  const texts = Object.values(request.prompt ?? {}).flatMap(({ inputs }) => [inputs?.text, inputs?.text_g]);
  return texts.filter((each) => typeof each === "string" && each).join(" · ") || "Workflow";
}
