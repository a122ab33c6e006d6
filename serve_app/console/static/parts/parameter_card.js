// The parameters of a job, and its times, cost and attempts.

import { path } from "../lib/api.js";
import { h, link } from "../lib/dom.js";
import { nodesOf } from "../pure/workflow.js";
import * as words from "../pure/words.js";
import { graphView } from "./graph_view.js";

const NAMES = {
  prompt: "Prompt",
  negative_prompt: "Negative prompt",
  sd_model_checkpoint: "Checkpoint",
  sampler_name: "Sampler",
  scheduler: "Scheduler",
  cfg_scale: "CFG scale",
  batch_size: "Pictures",
};

export function parameterCard(job) {
  const asked = job.flavour === "workflow" ? [job.inputs && parameters(job.inputs), workflow(job.request.prompt)] : parameters(job.request);
  return h("section", { class: "card", "aria-labelledby": "asked" }, h("h2", { id: "asked" }, "Parameters"), asked, h("h3", {}, "Run"), list(runOf(job)));
}

function parameters(request) {
  return list(Object.entries(request).filter(([, value]) => value !== "" && value !== null).map(([name, value]) => [NAMES[name] ?? spoken(name), shown(value)]));
}

/** Returns a link to a version of a named workflow, such as `portrait@3`. */
function workflowLink(reference) {
  return link(reference, `#/${path("workflows", reference)}`);
}

function spoken(name) {
  const text = name.replaceAll("_", " ");
  return text[0].toUpperCase() + text.slice(1);
}

function shown(value) {
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function workflow(graph) {
  const view = graphView({});
  view.show(nodesOf(graph), {});
  return view.root;
}

function runOf({ result, endpoint, timings, cost, attempts, input_files: files, retry_of: former, last_failure: failure }) {
  return [
    ["Workflow", result.workflow && workflowLink(result.workflow)],
    ["Endpoint", endpoint],
    ["Waited", timings.queued_s === undefined ? undefined : words.seconds(timings.queued_s)],
    ["Ran", timings.running_s === undefined ? undefined : words.seconds(timings.running_s)],
    ["Cost", cost && `${words.number(cost.work)} megapixel-steps`],
    ["Attempts", attempts > 1 ? attempts : undefined],
    ["Last failure", failure],
    ["Input files", files && Object.keys(files).join(", ")],
    ["Repeats", former && link(former, `#/job/${former}`)],
  ];
}

function list(pairs) {
  const given = pairs.filter(([, value]) => value !== undefined && value !== null);
  return h("dl", { class: "facts" }, given.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}
