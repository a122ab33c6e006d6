// The page of one version of a named workflow: a form of its inputs, its versions and its graph.

import { call, path, withQuery } from "../lib/api.js";
import * as catalogue from "../lib/catalogue.js";
import { button, fill, h, link } from "../lib/dom.js";
import * as draft from "../lib/draft.js";
import * as router from "../lib/router.js";
import * as session from "../lib/session.js";
import { nodesOf } from "../pure/workflow.js";
import * as words from "../pure/words.js";
import { complainAt } from "../parts/fields.js";
import { graphView } from "../parts/graph_view.js";
import { inputsForm } from "../parts/inputs_form.js";
import { confirmed, dialog, problem, toast } from "../parts/notices.js";
import { watcher } from "../parts/submit.js";
import { valuesOf, workflowFields } from "../parts/workflow_fields.js";

export async function namedWorkflowPage({ signal, reference }) {
  const workflow = await call(path("v1", "workflows", reference), { signal });
  const title = `${workflow.name}@${workflow.shown}`;
  const url = path("v1", "workflows", title);
  const [schema, types] = await Promise.all([call(`${url}/schema`, { signal }), catalogue.nodeTypes(workflow.endpoint)]);
  document.title = `${title} · Darkroom`;
  const fields = workflowFields(schema, workflow, types, { signal });
  const shown = watcher({ signal, hint: "Fill in the inputs and press Run. The pictures develop here while you watch." });
  const run = button("Run", { kind: "primary large", sign: "play", type: "submit", disabled: !session.may("generate") });
  const trouble = h("div");

  async function submit(event) {
    event.preventDefault();
    run.disabled = true;
    fill(trouble);
    complainAt(fields, { fields: [] });
    try {
      await shown.submit(`${url}/generate`, { inputs: valuesOf(fields) });
    } catch (error) {
      if (signal.aborted) return;
      if (!error.fields || !complainAt(fields, error, { inside: "inputs." })) fill(trouble, problem(error));
    } finally {
      run.disabled = false;
    }
  }

  const roots = (isWide) => Object.values(fields).filter((each) => each.isWide === isWide).map(({ root }) => root);
  const form = h("form", { class: "stack-form", onsubmit: submit, novalidate: true }, roots(true), h("div", { class: "fields" }, roots(false)), trouble, h("div", { class: "submit" }, run));
  form.addEventListener("keydown", (event) => (event.ctrlKey || event.metaKey) && event.key === "Enter" && form.requestSubmit());
  const head = h("div", { class: "page-head" }, link("Named workflows", "#/workflows", { class: "crumb" }), h("h1", {}, title), workflow.description && h("p", {}, workflow.description), h("p", { class: "hint" }, `Endpoint ${workflow.endpoint}`, workflow.shared && ", shared with all owners"), actions(workflow));
  const graph = graphView({});
  graph.show(nodesOf(workflow.prompt), {}, types);
  return h(
    "div",
    { class: "page" },
    head,
    h("div", { class: "split halves" }, h("section", { class: "panel", "aria-label": "Inputs" }, form), h("div", { class: "stack" }, shown.root, versionCard(workflow))),
    h("section", { class: "card", "aria-labelledby": "graph" }, h("h2", { id: "graph" }, "Graph"), graph.root),
  );
}

function mayChange({ shared }) {
  return session.may(shared ? "admin" : "generate");
}

/** Changes or deletes a workflow, and returns the answer. */
function change({ name, shared }, options) {
  return call(withQuery(path("v1", "workflows", name), { shared: shared || undefined }), options);
}

function actions(workflow) {
  const { name } = workflow;
  const isNewest = workflow.shown === workflow.versions.at(-1).version;

  function changeGraph() {
    draft.keep("workflow", { text: JSON.stringify(workflow.prompt, null, 2), endpoint: workflow.endpoint });
    router.go("#/workflow");
  }

  function chooseInputs() {
    dialog(`Inputs of ${name}`, (close) =>
      inputsForm(workflow.inputs, async (inputs) => {
        const { shown } = await change(workflow, { method: "PATCH", json: { inputs } });
        close();
        router.go(`#/${path("workflows", `${name}@${shown}`)}`);
      }),
    );
  }

  async function remove() {
    if (!(await confirmed(`Delete ${name}?`, "All its versions are removed for good. Its jobs stay.", "Delete"))) return;
    try {
      await change(workflow, { method: "DELETE" });
      toast(`${name} is deleted`);
      router.go("#/workflows");
    } catch (error) {
      toast(error.message);
    }
  }

  return h(
    "div",
    { class: "actions" },
    isNewest && mayChange(workflow) && button("Choose inputs", { onclick: chooseInputs }),
    session.may("generate") && button("Change the graph", { onclick: changeGraph }),
    mayChange(workflow) && button("Delete", { sign: "trash", kind: "danger", onclick: remove }),
  );
}

/** Returns the versions, newest first. One of them can be marked. */
function versionCard(workflow) {
  const root = h("section", { class: "card", "aria-labelledby": "versions" });

  async function mark(version) {
    try {
      show(await change(workflow, { method: "PATCH", json: { marked: version } }));
    } catch (error) {
      toast(error.message);
    }
  }

  function show({ name, marked, versions }) {
    const tool = (version) => (version === marked ? button("Unmark", { kind: "quiet", onclick: () => mark(null), "aria-label": `Unmark version ${version}` }) : button("Mark", { kind: "quiet", onclick: () => mark(version), "aria-label": `Mark version ${version}` }));
    const entry = ({ version, created_at: created }) =>
      h(
        "li",
        { class: "card-head" },
        h("span", {}, link(`Version ${version}`, `#/${path("workflows", `${name}@${version}`)}`, { "aria-current": version === workflow.shown ? "page" : undefined }), version === marked && ", marked"),
        h("span", { class: "actions" }, h("time", { class: "hint", datetime: created, title: words.date(created) }, words.ago(created)), mayChange(workflow) && tool(version)),
      );
    fill(
      root,
      h("h2", { id: "versions" }, "Versions"),
      h("p", { class: "hint" }, marked ? `The name alone means version ${marked}, which is marked.` : "The name alone means the newest version."),
      h("ol", { class: "stack" }, versions.toReversed().map(entry)),
    );
  }

  show(workflow);
  return root;
}
