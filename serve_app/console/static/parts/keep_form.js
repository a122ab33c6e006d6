// The form that stores a graph as a named workflow, or as a new version of one.

import { call, path } from "../lib/api.js";
import { button, fill, h } from "../lib/dom.js";
import { complainAt, text, textOf } from "./fields.js";
import { confirmed, problem } from "./notices.js";

/** Returns the form. `content` has the graph and its endpoint. `onStored` is called with the stored workflow. */
export function keepForm(content, onStored) {
  const name = text("Name", "", { required: true, placeholder: "portrait", hint: "Letters, digits, dots, dashes and underscores" });
  const description = text("Description");
  const fields = { name, description };
  const trouble = h("div");

  async function submit(event) {
    event.preventDefault();
    fill(trouble);
    try {
      const stored = await store();
      if (stored) onStored(stored);
    } catch (error) {
      if (!error.fields || !complainAt(fields, error)) fill(trouble, problem(error));
    }
  }

  /** Returns the stored workflow; null if the user does not want a new version of an existing one. */
  async function store() {
    const body = { ...content, description: textOf(description) };
    const called = name.control.value.trim();
    try {
      return await call("v1/workflows", { method: "POST", json: { ...body, name: called } });
    } catch (error) {
      if (error.type !== "workflow_exists") throw error;
      const isNew = await confirmed(`Store a new version of ${called}?`, "A workflow with this name exists. The new version keeps its inputs.", "Store");
      return isNew ? call(path("v1", "workflows", called), { method: "PATCH", json: body }) : null;
    }
  }

  return h(
    "form",
    { class: "stack-form", onsubmit: submit, novalidate: true },
    name.root,
    description.root,
    trouble,
    h("div", { class: "actions" }, button("Keep", { kind: "primary", type: "submit" })),
  );
}
