// The fields of a diffusion request, and the request that is built from them.

import { h, signButton } from "../lib/dom.js";
import { choice, endpointField, number, numberOf, text, textOf, tick } from "./fields.js";
import { promptBox } from "./prompt_box.js";

const AUTOMATIC = "Automatic";
/** Width and height in pixels; the first size is the default. */
const SIZES = {
  large: [[1024, 1024], [832, 1216], [1216, 832], [896, 1152], [1152, 896]],
  other: [[512, 512], [512, 768], [768, 512], [640, 640], [768, 768]],
  small: [[64, 64], [64, 96], [96, 64], [128, 128]],
};
const UPSCALERS = ["Latent", "Latent (antialiased)", "Latent (bicubic)", "Latent (nearest-exact)", "Lanczos", "Nearest"];
const NUMBERS = ["width", "height", "steps", "cfg_scale", "batch_size", "seed", "clip_skip", "hr_scale", "denoising_strength", "hr_second_pass_steps"];
const HIRES = ["hr_scale", "denoising_strength", "hr_second_pass_steps", "hr_upscaler"];

/** Returns {fields, extra, rows}: the fields by member, the members without a field, and the layout of the fields. */
export function formFields(there, given) {
  const values = { ...starting(there), ...given };
  const fields = { ...texts(values), ...models(there, values), ...sampling(there, values), ...size(values), ...hires(values), ...sending(there, values) };
  const presets = sizeChoice(fields, there);
  const extra = Object.fromEntries(Object.entries(given).filter(([name]) => !(name in fields)));
  return { fields, extra, rows: rows(fields, presets, there, given) };
}

function starting({ checkpoints }) {
  const name = checkpoints[0]?.name;
  const [width, height] = sizesFor(name, checkpoints)[0];
  return { sd_model_checkpoint: name, width, height, ...samplingFor(name, checkpoints), batch_size: 1, seed: -1, clip_skip: 1, hr_scale: 2, denoising_strength: 0.75 };
}

function sizesFor(name, checkpoints) {
  // The included checkpoints can draw only small pictures.
  if (name?.startsWith("darkroom-")) return SIZES.small;
  const side = checkpoints.find((each) => each.name === name)?.defaults?.width ?? 512;
  return side > 512 ? SIZES.large : SIZES.other;
}

/** Returns the default values of the service for the checkpoint. */
function samplingFor(name, checkpoints) {
  const { steps, cfg_scale, sampler_name, scheduler } = checkpoints.find((each) => each.name === name)?.defaults ?? {};
  return { steps: steps ?? 20, cfg_scale: cfg_scale ?? 7, sampler_name: sampler_name ?? "Euler", scheduler: scheduler ?? AUTOMATIC };
}

function texts(values) {
  return {
    prompt: promptBox("Prompt", values.prompt ?? "", { rows: 5, placeholder: "a large red circle on white", hint: "(word:1.2) weighs, [a:b:10] changes at step 10, <lora:name:0.8> adds a LoRA" }),
    negative_prompt: promptBox("Negative prompt", values.negative_prompt ?? "", { rows: 2 }),
  };
}

function models({ checkpoints }, values) {
  const named = checkpoints.map(({ name, family }) => [name, family ? `${name} · ${family}` : name]);
  return { sd_model_checkpoint: choice("Checkpoint", named.length ? named : [["", "There is none"]], values.sd_model_checkpoint) };
}

function sampling({ samplers, schedulers }, values) {
  const labels = samplers.map(({ label }) => label);
  return {
    sampler_name: choice("Sampler", labels, values.sampler_name),
    scheduler: choice("Scheduler", [AUTOMATIC, ...schedulers.map(({ label }) => label)], values.scheduler),
    steps: number("Steps", values.steps, { min: 1, max: 150 }),
    cfg_scale: number("CFG scale", values.cfg_scale, { min: 0, max: 100, step: 0.5 }),
    clip_skip: number("Clip skip", values.clip_skip, { min: 1, max: 12 }),
  };
}

function size(values) {
  const draw = signButton("A new seed each time", "again", { onclick: () => set(seed, -1) });
  const seed = number("Seed", values.seed, { min: -1, hint: "-1 draws one", aside: draw });
  return {
    width: number("Width", values.width, { min: 64, step: 8 }),
    height: number("Height", values.height, { min: 64, step: 8 }),
    batch_size: number("Pictures", values.batch_size, { min: 1, max: 16 }),
    seed,
  };
}

function hires(values) {
  return {
    enable_hr: tick("Sample again at a larger size", values.enable_hr === true),
    hr_scale: number("Times the size", values.hr_scale, { min: 1, max: 8, step: 0.25 }),
    hr_upscaler: choice("Upscaler", UPSCALERS, values.hr_upscaler || UPSCALERS[0]),
    hr_second_pass_steps: number("Steps of the second pass", values.hr_second_pass_steps ?? 0, { min: 0, max: 150, hint: "0: as many" }),
    denoising_strength: number("Denoising strength", values.denoising_strength, { min: 0, max: 1, step: 0.05 }),
  };
}

function sending({ endpoints }, values) {
  return {
    endpoint: endpointField(endpoints, values.endpoint),
    callback_url: text("Callback URL", "", { type: "url", placeholder: "https://…", hint: "Is sent the result when the job ends" }),
  };
}

function set({ control }, value) {
  control.value = value;
  control.dispatchEvent(new Event("input", { bubbles: true }));
}

/** Returns buttons with the usual sizes of the chosen checkpoint. */
function sizeChoice(fields, { checkpoints }) {
  const presets = h("div", { class: "presets", role: "group", "aria-label": "Usual sizes" });
  let usual = samplingFor(fields.sd_model_checkpoint.control.value, checkpoints);
  const show = () => {
    const sizes = sizesFor(fields.sd_model_checkpoint.control.value, checkpoints);
    presets.replaceChildren(...sizes.map(preset));
  };
  const preset = ([width, height]) =>
    h("button", { type: "button", class: "chip", onclick: () => (set(fields.width, width), set(fields.height, height)) }, `${width} × ${height}`);
  fields.sd_model_checkpoint.control.addEventListener("change", () => {
    const name = fields.sd_model_checkpoint.control.value;
    const [width, height] = sizesFor(name, checkpoints)[0];
    set(fields.width, width);
    set(fields.height, height);
    const before = usual;
    usual = samplingFor(name, checkpoints);
    // A value is changed only if the defaults of the two checkpoints differ.
    for (const [member, value] of Object.entries(usual)) if (value !== before[member]) set(fields[member], value);
    show();
  });
  show();
  return presets;
}

function rows(fields, presets, { loras }, given) {
  const roots = (...names) => names.map((name) => fields[name].root);
  return [
    roots("prompt"),
    loras.length > 0 && loraChips(loras, fields.prompt),
    roots("negative_prompt"),
    h("div", { class: "fields" }, roots("sd_model_checkpoint", "sampler_name", "scheduler")),
    h("div", { class: "fields numbers" }, roots("width", "height", "steps", "cfg_scale", "batch_size", "seed")),
    presets,
    h("details", { open: given.enable_hr === true }, h("summary", {}, "More"), h("div", { class: "fields" }, roots("endpoint", "callback_url", "clip_skip", "enable_hr", ...HIRES))),
  ];
}

function loraChips(loras, prompt) {
  const chips = loras.map(({ name }) => {
    const short = name.replace(/\.[^.]+$/, "");
    return h("button", { type: "button", class: "chip", title: `Add ${name} to the prompt`, onclick: () => prompt.insert(`<lora:${short}:1>`) }, short);
  });
  return h("div", { class: "presets loras", role: "group", "aria-label": "LoRAs" }, h("span", { class: "hint" }, "LoRAs"), chips);
}

/** Returns the body of the request. `extra` has members of a repeated job for which the form has no field. */
export function bodyOf(fields, extra) {
  const isTwice = fields.enable_hr.control.checked;
  const body = { ...extra, prompt: fields.prompt.control.value, negative_prompt: fields.negative_prompt.control.value };
  for (const name of ["sd_model_checkpoint", "sampler_name", "scheduler"]) body[name] = textOf(fields[name]);
  for (const name of NUMBERS.filter((each) => isTwice || !HIRES.includes(each))) body[name] = numberOf(fields[name]);
  if (isTwice) Object.assign(body, { enable_hr: true, hr_upscaler: fields.hr_upscaler.control.value });
  return body;
}
