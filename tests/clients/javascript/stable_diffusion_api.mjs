// stable-diffusion-api, as its README uses it, with the key as the password.
import assert from "node:assert/strict";
import sharp from "sharp";
import { StableDiffusionApi } from "stable-diffusion-api";
import { address, key, prompt, save } from "./shared.mjs";

const api = new StableDiffusionApi({ baseUrl: address, timeout: 300_000 });
api.setAuth("me", key);
const small = { prompt, seed: 5, steps: 3, width: 64, height: 64 };
const made = await api.txt2img({ ...small, negative_prompt: "blurry" });
const first = Buffer.from(made.response.data.images[0], "base64");
await save("made", first);
assert.match(JSON.parse(made.info).infotexts[0], /Steps: 3/);
const again = await api.img2img({ ...small, init_images: [made.image] });
await save("again", await again.image.png().toBuffer());
const mask = sharp({ create: { width: 64, height: 64, channels: 3, background: "white" } });
const painted = await api.img2img({ ...small, init_images: [made.image], mask_image: mask });
await save("painted", await painted.image.png().toBuffer());
const enlarged = await api.extraSingle({ image: made.image, upscaler_1: "Lanczos", upscaling_resize: 2 });
await save("enlarged", await enlarged.image.png().toBuffer());
assert.ok((await api.getSamplers()).some((each) => each.name === "Euler a"));
const [model] = await api.getSdModels();
await api.setOptions({ sd_model_checkpoint: model.title });
assert.equal(await api.getCurrentModel(), model.title);
assert.ok((await api.getUpscalers()).length);
assert.equal((await api.getProgress()).state.sampling_step, 0);
await assert.rejects(api.txt2img({ ...small, script_name: "x/y plot" }), (error) => {
  assert.equal(error.response.status, 422);
  assert.match(JSON.stringify(error.response.data), /script_name/);
  return true;
});
