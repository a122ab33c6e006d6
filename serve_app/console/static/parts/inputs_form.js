// The form that leaves out or renames inputs of a named workflow.

import { button, fill, h } from "../lib/dom.js";
import { complainAt, text, tick } from "./fields.js";
import { problem } from "./notices.js";

/** Returns the form. `inputs` are those of the workflow. `send(inputs)` may raise ApiError, which is shown. */
export function inputsForm(inputs, send) {
  const trouble = h("div");
  const rows = Object.entries(inputs).map(([name, { value: _, ...definition }]) => ({
    definition,
    keeps: tick(`Keep ${name}`, true, { hint: `${definition.input} of node ${definition.node}` }),
    called: text(`Name of ${name}`, name),
  }));

  async function submit(event) {
    event.preventDefault();
    fill(trouble);
    const kept = rows.filter(({ keeps }) => keeps.control.checked).map((each) => [each.called.control.value.trim(), each]);
    const fields = Object.fromEntries(kept.map(([name, { called }]) => [name, called]));
    const twice = kept.filter(([name, { called }]) => fields[name] !== called);
    complainAt(Object.fromEntries(rows.map(({ called }, index) => [index, called])), { fields: [] });
    for (const [, { called }] of twice) called.complain("Another input has this name.");
    if (twice.length) return;
    try {
      await send(Object.fromEntries(kept.map(([name, { definition }]) => [name, definition])));
    } catch (error) {
      if (!error.fields || !complainAt(fields, error, { inside: "inputs." })) fill(trouble, problem(error));
    }
  }

  return h(
    "form",
    { class: "stack-form", onsubmit: submit, novalidate: true },
    h("p", { class: "hint" }, "What is left out keeps its value in the graph. The change is stored as a new version."),
    rows.map(({ keeps, called }) => h("div", { class: "fields" }, keeps.root, called.root)),
    trouble,
    h("div", { class: "actions" }, button("Store a new version", { kind: "primary", type: "submit" })),
  );
}
