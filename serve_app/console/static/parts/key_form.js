// The form to create or to change a key.

import { button, fill, h } from "../lib/dom.js";
import { complainAt, choice, number, numberOf, text, textOf, tick } from "./fields.js";
import { problem } from "./notices.js";

const SCOPES = {
  generate: "submit jobs and input images",
  read: "see jobs, results and models",
  cancel: "cancel and erase jobs",
  endpoints: "make and change endpoints of its owner",
  metrics: "metrics of the whole service",
  admin: "everything, of every owner",
};
const USUAL = ["generate", "read", "cancel"];
const DAY_MS = 86_400_000;
const NUMBERS = {
  rate_per_s: ["Requests a second", { min: 0 }],
  burst: ["Requests at once", { min: 1 }],
  max_open_jobs: ["Open jobs", { min: 0 }],
  max_cost: ["Megapixel-steps of a job", { min: 0 }],
  image_quality: ["Quality of WebP and JPEG", { min: 1, max: 100 }],
  weight: ["Weight of its turns", { min: 0.1, max: 100, step: 0.1 }],
};
const LISTS = { endpoints: "Endpoints", callback_hosts: "Callback hosts" };

/** Returns the form. `key` is null for a new key. `send(body)` may raise ApiError, which is shown in the form. */
export function keyForm(key, send) {
  const limits = key?.limits ?? {};
  const owner = text("Owner", key?.owner ?? "", { required: true, disabled: Boolean(key), hint: "Keys of one owner share jobs and uploads" });
  const name = text("Name", key?.name ?? "", { hint: "To tell keys apart" });
  const days = number("Days until it ends", undefined, { min: 1, hint: key?.expires_at ? "Empty: as it is" : "Empty: never" });
  const scopes = Object.entries(SCOPES).map(([scope, hint]) => [scope, tick(scope, (key?.scopes ?? USUAL).includes(scope), { hint })]);
  const numbers = Object.entries(NUMBERS).map(([member, [label, more]]) => [member, number(label, limits[member], more)]);
  const lists = Object.entries(LISTS).map(([member, label]) => [member, text(label, (limits[member] ?? []).join(", "), { hint: "With commas between" })]);
  const priority = choice("Class", [["", "As usual"], "high", "normal", "low"], limits.priority ?? "");
  const format = choice("Format of its pictures", [["", "As usual"], ["png", "PNG"], ["webp", "WebP"], ["jpeg", "JPEG"]], limits.image_format ?? "");
  const trouble = h("div");
  const fields = { owner, name, expires_at: days, ...Object.fromEntries([...numbers, ...lists]), priority, image_format: format };

  function body() {
    const given = [...numbers.map(([member, each]) => [member, numberOf(each)]), ...lists.map(([member, each]) => [member, listOf(each)]), ["priority", textOf(priority)], ["image_format", textOf(format)]];
    const chosen = key ? given.map(([member, value]) => [member, value ?? null]) : given.filter(([, value]) => value !== undefined);
    const last = numberOf(days);
    return {
      ...(key ? {} : { owner: owner.control.value.trim() }),
      ...(textOf(name) ? { name: textOf(name) } : {}),
      ...(last ? { expires_at: new Date(Date.now() + last * DAY_MS).toISOString() } : {}),
      scopes: scopes.filter(([, each]) => each.control.checked).map(([scope]) => scope),
      limits: Object.fromEntries(chosen),
    };
  }

  async function submit(event) {
    event.preventDefault();
    fill(trouble);
    try {
      await send(body());
    } catch (error) {
      if (!error.fields || !complainAt(fields, error)) fill(trouble, problem(error));
    }
  }

  return h(
    "form",
    { class: "stack-form", onsubmit: submit, novalidate: true },
    h("div", { class: "fields" }, owner.root, name.root, days.root),
    h("fieldset", {}, h("legend", {}, "May"), scopes.map(([, each]) => each.root)),
    h("details", {}, h("summary", {}, "Limits"), h("p", { class: "hint" }, "What is empty is as the service is set up."), h("div", { class: "fields" }, numbers.map(([, each]) => each.root), priority.root, format.root, lists.map(([, each]) => each.root))),
    trouble,
    h("div", { class: "actions" }, button(key ? "Change" : "Make the key", { kind: "primary", type: "submit" })),
  );
}

function listOf(field) {
  const items = field.control.value.split(",").map((each) => each.trim()).filter(Boolean);
  return items.length ? items : undefined;
}

/** Returns the limits of a key as a short text. */
export function limitsText(limits) {
  const said = Object.entries(limits).map(([name, value]) => `${name.replaceAll("_", " ")} ${Array.isArray(value) ? value.join(", ") : value}`);
  return said.join("; ") || "as usual";
}
