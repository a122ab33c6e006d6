// The page with all named workflows that the key may run.

import { call, fewAtOnce, path } from "../lib/api.js";
import { fill, h, link } from "../lib/dom.js";
import { empty } from "../parts/notices.js";
import { namedWorkflowPage } from "./named_workflow.js";

const HEADS = ["Name", "Description", "Endpoint", "Version", "Shared"];

export async function workflowsPage({ signal, parameter: reference }) {
  if (reference) return namedWorkflowPage({ signal, reference });
  const { workflows } = await call("v1/workflows", { signal });
  const rows = workflows.map((each) => ({ workflow: each, description: h("td"), endpoint: h("td") }));
  const list = rows.length ? table(rows) : empty("No named workflows", "Bring a graph to the page Workflow, and keep it by a name.", link("Workflow", "#/workflow", { class: "button" }));
  fewAtOnce(rows, (row) => describe(row, signal));
  return h("div", { class: "page" }, h("h1", {}, "Named workflows"), list);
}

/** Shows what the list of workflows does not contain. Nothing is shown for a workflow that cannot be read. */
async function describe({ workflow, description, endpoint }, signal) {
  try {
    const found = await call(path("v1", "workflows", workflow.name), { signal });
    fill(description, found.description);
    fill(endpoint, found.endpoint);
  } catch {
    // It was deleted in the meantime, or the user has left the page.
  }
}

function table(rows) {
  return h(
    "section",
    { class: "card", "aria-label": "Named workflows" },
    h(
      "div",
      { class: "table", tabindex: 0, role: "region", "aria-label": "Workflows with their versions" },
      h("table", {}, h("thead", {}, h("tr", {}, HEADS.map((each) => h("th", { scope: "col" }, each)))), h("tbody", {}, rows.map(line))),
    ),
  );
}

function line({ workflow: { name, version, versions, marked, shared }, description, endpoint }) {
  return h(
    "tr",
    {},
    h("td", {}, link(name, `#/${path("workflows", name)}`)),
    description,
    endpoint,
    h("td", {}, `${version} of ${versions.length}`, marked && ", marked"),
    h("td", {}, shared && h("span", { class: "tag" }, "with all owners")),
  );
}
