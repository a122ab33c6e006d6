// The page for diffusion jobs: a form that lists the available models and samplers.

import * as catalogue from "../lib/catalogue.js";
import { button, fill, h, settled } from "../lib/dom.js";
import * as draft from "../lib/draft.js";
import { call, withQuery } from "../lib/api.js";
import { loras as namesIn } from "../pure/prompt.js";
import * as words from "../pure/words.js";
import { complainAt } from "../parts/fields.js";
import { bodyOf, formFields } from "../parts/diffusion_form.js";
import { problem } from "../parts/notices.js";
import { watcher } from "../parts/submit.js";

const COST_PAUSE_MS = 500;

export async function diffusionPage({ signal }) {
  const [checkpoints, loras, samplers, schedulers, endpoints] = await Promise.all([
    catalogue.models("checkpoints"),
    catalogue.models("loras"),
    catalogue.samplers(),
    catalogue.schedulers(),
    catalogue.endpointIds(),
  ]);
  const there = { checkpoints, loras, samplers, schedulers, endpoints };
  const { fields, extra, rows } = formFields(there, draft.kept("diffusion") ?? {});
  const trouble = h("div");
  const cost = h("p", { class: "hint cost", role: "status" });
  const generate = button("Generate", { kind: "primary large", sign: "play", type: "submit" });
  const shown = watcher({ signal, hint: "Describe a picture and press Generate. It develops here while you watch." });

  async function submit(event) {
    event.preventDefault();
    generate.disabled = true;
    fill(trouble);
    complainAt(fields, { fields: [] });
    try {
      await shown.submit("diffusion/v1/generate", bodyOf(fields, extra), query());
      if (matchMedia("(max-width: 900px)").matches) shown.root.scrollIntoView({ behavior: "smooth" });
    } catch (error) {
      if (signal.aborted) return;
      if (!error.fields || !complainAt(fields, error)) fill(trouble, problem(error));
    } finally {
      generate.disabled = false;
    }
  }

  const query = () => ({ endpoint: fields.endpoint.control.value, callback_url: fields.callback_url.control.value.trim() });

  const estimate = settled(async () => {
    if (signal.aborted) return;
    draft.keep("diffusion", { ...bodyOf(fields, extra), endpoint: fields.endpoint.control.value });
    try {
      const url = withQuery("diffusion/v1/check", { endpoint: fields.endpoint.control.value });
      const found = await call(url, { method: "POST", json: bodyOf(fields, extra), signal });
      fill(cost, costText(found));
      complainAt(fields, { fields: [] });
      warnOfLoras(fields, loras);
    } catch (error) {
      if (signal.aborted) return;
      const isPlaced = error.fields && complainAt(fields, error, { isFocused: false });
      fill(cost, isPlaced ? "" : error.message);
    }
  }, COST_PAUSE_MS);

  const form = h("form", { class: "create-form", onsubmit: submit, oninput: estimate, onchange: estimate, novalidate: true }, rows, trouble, h("div", { class: "submit" }, generate, cost));
  form.addEventListener("keydown", (event) => (event.ctrlKey || event.metaKey) && event.key === "Enter" && form.requestSubmit());
  estimate();
  return h("div", { class: "page split" }, h("section", { class: "panel", "aria-labelledby": "create-title" }, h("h1", { id: "create-title" }, "Create"), form), shown.root);
}

export function costText({ images, cost }) {
  const made = images ? `${words.plural(images, "picture")}, ` : "";
  return `${made}${words.number(cost.work)} megapixel-steps, ${words.bytes(cost.live_bytes)} of values`;
}

/** Warns of unknown LoRAs. The `compatibility` of the endpoint determines whether they are ignored or refused. */
function warnOfLoras(fields, loras) {
  const known = new Set(loras.flatMap(({ name }) => [name, name.replace(/\.[^.]+$/, ""), name.split("/").at(-1).replace(/\.[^.]+$/, "")]));
  const unknown = namesIn(fields.prompt.control.value).filter((name) => !known.has(name));
  fields.prompt.complain(unknown.length ? `There is no LoRA named ${unknown.join(", ")} here.` : null);
}
