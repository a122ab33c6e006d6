// The fields for the inputs of a named workflow, made from its JSON Schema.

import { h } from "../lib/dom.js";
import { declarationOf, optionsOf } from "../pure/workflow.js";
import { dropPlace } from "./drop.js";
import { choice, field, number, numberOf, text, textOf, tick } from "./fields.js";
import { toast } from "./notices.js";
import { FILES, upload } from "./uploads.js";

const LONG = 60;

/** Returns the fields by input. `value()` of a field returns its value; undefined if it is not given.
 *
 * `isWide` is true for fields of long texts and of files.
 * `schema` is the answer of `GET /v1/workflows/{name}/schema`, `workflow` that of `GET /v1/workflows/{name}`.
 * `types` has the node types, which declare choices and long texts.
 */
export function workflowFields({ inputs: schema }, workflow, types, { signal }) {
  const made = Object.entries(schema.properties).map(([name, property]) => {
    const { node, input } = workflow.inputs[name];
    const declared = declarationOf(types[workflow.prompt[node].class_type], input);
    return [name, { isWide: false, ...inputField(name, property, declared, { required: schema.required.includes(name), signal }) }];
  });
  return Object.fromEntries(made);
}

export function valuesOf(fields) {
  const values = Object.entries(fields).map(([name, each]) => [name, each.value()]);
  return Object.fromEntries(values.filter(([, value]) => value !== undefined));
}

function inputField(name, { type, description, default: given, ...property }, declared, { required, signal }) {
  const more = { hint: [required && "Required.", description].filter(Boolean).join(" "), required };
  if (property.format) return fileField(name, given, { ...more, format: property.format, signal });
  const options = property.enum ?? optionsOf(declared);
  if (options) return optionField(name, given, options, more);
  if (type === "boolean") {
    const made = tick(name, given === true, { hint: more.hint });
    return { ...made, value: () => made.control.checked };
  }
  if (type !== "string") {
    const made = number(name, given, { ...more, min: property.minimum, max: property.maximum, step: type === "integer" ? 1 : "any" });
    return { ...made, value: () => numberOf(made) };
  }
  const isLong = declared?.[1]?.multiline || given?.length > LONG;
  const made = isLong ? field(name, h("textarea", { rows: 4, value: given ?? "", required }), more) : text(name, given, more);
  // An empty text is a value only if it replaces another text.
  return { ...made, isWide: Boolean(isLong), value: () => (given === undefined ? textOf(made) : made.control.value) };
}

function optionField(name, given, options, more) {
  const empty = given === undefined ? [["", "Choose one"]] : [];
  const made = choice(name, [...empty, ...options.map((each) => [String(each), String(each)])], given === undefined ? "" : String(given), more);
  return { ...made, value: () => options.find((each) => String(each) === made.control.value) ?? given };
}

/** Returns a field for the name of an upload or an https URL. A file that is chosen or dropped is uploaded. */
function fileField(name, given, { format, signal, ...more }) {
  const made = text(name, given, more);
  const accept = format === "image" ? "image/png,image/jpeg,image/webp" : FILES;

  async function take(file) {
    made.complain(null);
    try {
      made.control.value = await upload(file, { signal });
      toast(`${made.control.value} is uploaded`);
    } catch (error) {
      if (!signal.aborted) made.complain(error.message);
    }
  }

  made.root.append(dropPlace(`or drop the file of ${name} here`, { take, accept }));
  return { ...made, isWide: true, value: () => textOf(made) };
}
