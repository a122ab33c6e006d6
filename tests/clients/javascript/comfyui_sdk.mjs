// @saintno/comfyui-sdk, as its README uses it, with the key as its bearer token.
import assert from "node:assert/strict";
import { CallWrapper, ComfyApi, PromptBuilder } from "@saintno/comfyui-sdk";
import { address, brokenGraph, graph, inverted, key, prompt, save } from "./shared.mjs";

const api = new ComfyApi(address, undefined, { credentials: { type: "bearer_token", token: key } });
await api.init().waitForReady();

/** Run a graph and return its result, its progress and its error. */
function run(builder) {
  return new Promise((resolve) => {
    const steps = [];
    new CallWrapper(api, builder)
      .onProgress((progress) => steps.push(progress.value))
      .onFinished((result) => resolve({ result, steps }))
      .onFailed((error) => resolve({ error, steps }))
      .run();
  });
}

async function contentOf(image) {
  return (await api.getImage(image)).arrayBuffer();
}

const builder = new PromptBuilder(graph, ["positive"], ["images"])
  .setInputNode("positive", "6.inputs.text")
  .setOutputNode("images", "9")
  .input("positive", prompt);
const { error, result, steps } = await run(builder);
assert.equal(error, undefined);
// A short job may end before its last progress is sent.
assert.deepEqual(steps, [...steps].sort((one, other) => one - other));
assert.ok(steps.every((step) => step > 0 && step <= graph["3"].inputs.steps), String(steps));
const made = await save("made", await contentOf(result.images.images[0]));

const uploaded = await api.uploadImage(made, "made.png");
const loading = new PromptBuilder(inverted(uploaded.info.filename), [], ["images"]);
const loaded = await run(loading.setOutputNode("images", "3"));
await save("inverted", await contentOf(loaded.result.images.images[0]));

const failed = await run(new PromptBuilder(brokenGraph(), [], ["images"]).setOutputNode("images", "9"));
assert.match(JSON.stringify(failed.error.cause ?? failed.error), /missing\.safetensors/);

assert.ok((await api.getCheckpoints()).includes(graph["4"].inputs.ckpt_name));
assert.ok((await api.getSamplerInfo()).sampler[0].includes("euler"));
assert.ok((await api.getSystemStats()).devices.length);
assert.deepEqual(await api.getQueue(), { queue_running: [], queue_pending: [] });
assert.ok(Object.keys(await api.getHistories()).length);
assert.ok((await api.getModelTypes()).includes("checkpoints"));
assert.ok((await api.getModels("checkpoints")).includes(graph["4"].inputs.ckpt_name));
assert.ok((await api.getModelFolders()).some((each) => each.name === "checkpoints"));
assert.ok((await api.getModelFiles("checkpoints")).length);
assert.ok(await api.getFeatures());
await api.storeUserData("workflows/made.json", graph);
assert.deepEqual(await api.listUserData("workflows", true), ["made.json"]);
const listed = await api.listUserDataV2("workflows");
assert.deepEqual(listed.map((each) => each.path), ["workflows", "workflows/made.json"]);
api.destroy();
