// The page of one job: its pictures, parameters, events and callback.

import { call, fileUrl, path } from "../lib/api.js";
import { button, fill, h, link } from "../lib/dom.js";
import * as draft from "../lib/draft.js";
import * as online from "../lib/online.js";
import * as router from "../lib/router.js";
import * as session from "../lib/session.js";
import * as words from "../pure/words.js";
import { callbackCard } from "../parts/callback_card.js";
import { followJob } from "../parts/job_state.js";
import { confirmed, copy, problem, toast } from "../parts/notices.js";
import { parameterCard } from "../parts/parameter_card.js";
import { fileName } from "../parts/result.js";
import { stage } from "../parts/stage.js";
import { cancelJob, submitJob } from "../parts/submit.js";
import { timeline } from "../parts/timeline.js";

export async function jobPage({ signal, parameter: id }) {
  if (!id) throw new Error("The address names no job.");
  const url = path("v1", "jobs", id);
  const job = await call(url, { signal });
  document.title = `${title(job)} · Darkroom`;
  const shown = stage(id);
  const events = timeline();
  const callback = callbackCard(job, { signal });
  const facts = h("div");
  const actions = h("div", { class: "actions" });
  const trouble = h("div");
  let isOpen = job.status === 0;

  function showFacts(now) {
    fill(facts, parameterCard(now));
    fill(actions, actionsOf(now, { isOpen, runNewest }));
  }

  /** Runs the named workflow of the job again, with the inputs of the job. */
  async function runNewest() {
    const [name] = job.result.workflow.split("@");
    try {
      const made = await submitJob(`${path("v1", "workflows", name)}/generate`, { inputs: job.inputs }, { signal });
      router.go(`#/job/${made.request_id}`);
    } catch (error) {
      if (!signal.aborted) fill(trouble, problem(error));
    }
  }

  async function refresh() {
    try {
      showFacts(await call(url, { signal }));
      await callback.refresh();
    } catch (error) {
      if (!signal.aborted) toast(error.message);
    }
  }

  function show(state) {
    shown.show(state);
    events.show(state.events);
    if (isOpen && state.name !== "queued" && state.name !== "running") {
      isOpen = false;
      refresh();
    }
  }

  showFacts(job);
  followJob(id, { signal, onChange: show }).catch((error) => !signal.aborted && fill(trouble, problem(error)));
  online.onReturn(refresh, signal);
  return h(
    "div",
    { class: "page job" },
    h("div", { class: "page-head" }, link("Gallery", "#/gallery", { class: "crumb" }), h("h1", {}, title(job)), h("p", { class: "hint" }, `${words.date(job.created_at)} · `, h("code", {}, id)), actions),
    trouble,
    h("div", { class: "split wide-left" }, shown.root, h("div", { class: "stack" }, facts, callback.root, events.root)),
  );
}

/** Returns the title of a job: its named workflow, or the beginning of its prompt. */
export function title(job) {
  if (job.flavour === "workflow") return job.result?.workflow ?? "Workflow";
  const prompt = (job.request?.prompt ?? "").trim();
  return prompt.length > 90 ? `${prompt.slice(0, 90)}…` : prompt || "Untitled";
}

function actionsOf(job, { isOpen, runNewest }) {
  const cancel = button("Cancel", { sign: "stop", onclick: () => cancelJob(job.request_id, cancel) });
  const made = (job.result?.results ?? []).map((each, index) => ({ ...each, index })).filter((each) => each.url);
  return [
    isOpen && session.may("cancel") && cancel,
    session.may("generate") && button("Run again with a change", { sign: "again", onclick: () => runAgain(job) }),
    job.inputs && session.may("generate") && button("Run again with the newest version", { sign: "again", onclick: runNewest }),
    button("Copy parameters", { sign: "copy", onclick: () => copy(JSON.stringify(job.request, null, 2), "Parameters") }),
    made.length > 0 && button(made.length > 1 ? `Save ${made.length} files` : "Save", { sign: "download", onclick: () => save(job.request_id, made) }),
    session.may("cancel") && button("Erase", { sign: "trash", kind: "danger", onclick: () => erase(job) }),
  ];
}

function runAgain(job) {
  if (job.flavour === "workflow") draft.keep("workflow", { text: JSON.stringify(job.request, null, 2), endpoint: job.endpoint });
  else draft.keep("diffusion", { ...formRequest(job.request), endpoint: job.endpoint });
  router.go(job.flavour === "workflow" ? "#/workflow" : "#/create");
}

/** Returns the request with the checkpoint in the member that the form uses. */
function formRequest({ override_settings: settings, ...request }) {
  const { sd_model_checkpoint: checkpoint, ...others } = settings ?? {};
  const kept = Object.keys(others).length ? { override_settings: others } : {};
  return { ...request, ...kept, ...(checkpoint ? { sd_model_checkpoint: checkpoint } : {}) };
}

function save(id, made) {
  for (const image of made) {
    const url = fileUrl(image.url);
    link("", url, { download: fileName(id, image, url) }).click();
  }
}

async function erase(job) {
  const isSure = await confirmed("Erase this job?", "Its prompt, pictures and events are removed for good. This cannot be undone.", "Erase");
  if (!isSure) return;
  try {
    await call(path("v1", "jobs", job.request_id), { method: "DELETE" });
    toast("The job is erased");
    router.go("#/gallery");
  } catch (error) {
    toast(error.message);
  }
}
