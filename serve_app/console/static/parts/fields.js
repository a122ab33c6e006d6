// Fields of forms, each with a name, a hint, and the error that the service reported for it.

import { fill, h } from "../lib/dom.js";

let last = 0;

/** Returns a field: `root` is its element, `control` is its control, and `complain` shows an error. */
export function field(label, control, { hint, aside } = {}) {
  const id = `field-${(last += 1)}`;
  control.id = id;
  const { wrong, complain } = complaint(control, { hint });
  const root = h(
    "div",
    { class: "field" },
    h("div", { class: "label" }, h("label", { for: id }, label), aside),
    control.closest(".box") ?? control,
    hint && h("p", { class: "hint", id: `${id}-hint` }, hint),
    wrong,
  );
  return { root, control, complain };
}

/** Returns {wrong, complain}: the element for the errors of a control, and the function that shows an error. */
function complaint(control, { hint }) {
  const wrong = h("p", { class: "wrong", id: `${control.id}-wrong`, hidden: true });
  control.setAttribute("aria-describedby", [hint && `${control.id}-hint`, wrong.id].filter(Boolean).join(" "));
  const complain = (text) => {
    wrong.hidden = !text;
    fill(wrong, text ?? "");
    control.toggleAttribute("aria-invalid", Boolean(text));
    if (text) control.setAttribute("aria-invalid", "true");
  };
  return { wrong, complain };
}

export function text(label, value = "", { hint, ...attributes } = {}) {
  return field(label, h("input", { type: "text", autocomplete: "off", spellcheck: "false", value, ...attributes }), { hint });
}

export function number(label, value, { hint, aside, ...attributes } = {}) {
  return field(label, h("input", { type: "number", value: value ?? "", ...attributes }), { hint, aside });
}

/** Returns a choice. `options` are [[value, text]] or values. A chosen value that is missing is added. */
export function choice(label, options, value, { hint, ...attributes } = {}) {
  const pairs = options.map((each) => (Array.isArray(each) ? each : [each, each]));
  if (value && !pairs.some(([each]) => each === value)) pairs.unshift([value, `${value} (not here)`]);
  const control = h(
    "select",
    attributes,
    pairs.map(([each, name]) => h("option", { value: each, selected: each === value }, name)),
  );
  return field(label, control, { hint });
}

/** Returns the field for the endpoint. `ids` are the ids of endpoints; null if they are unknown. */
export function endpointField(ids, value = "default") {
  return ids ? choice("Endpoint", ids, value) : text("Endpoint", value);
}

export function tick(label, isOn, { hint, ...attributes } = {}) {
  const id = `field-${(last += 1)}`;
  const control = h("input", { type: "checkbox", id, checked: isOn, ...attributes });
  const { wrong, complain } = complaint(control, { hint });
  const root = h("div", { class: "tick" }, control, h("label", { for: id }, label), hint && h("p", { class: "hint", id: `${id}-hint` }, hint), wrong);
  return { root, control, complain };
}

/** Returns the number in a field; undefined if the field is empty. */
export function numberOf({ control }) {
  return control.value.trim() === "" ? undefined : Number(control.value);
}

export function textOf({ control }) {
  return control.value.trim() || undefined;
}

/** Shows each error of a refused request at its field. Returns true if all errors have a field.
 *
 * `inside` is the beginning of the names of the fields in the request, such as `inputs.`.
 */
export function complainAt(fields, error, { isFocused = true, inside = "" } = {}) {
  for (const each of Object.values(fields)) each.complain(null);
  const unplaced = error.fields.filter((each) => {
    const found = each.field.startsWith(inside) ? fields[each.field.slice(inside.length).split(".")[0]] : undefined;
    found?.complain(each.message);
    return !found;
  });
  const first = Object.values(fields).find((each) => each.control.hasAttribute("aria-invalid"));
  if (isFocused) first?.control.focus();
  return error.fields.length > 0 && unplaced.length === 0;
}
