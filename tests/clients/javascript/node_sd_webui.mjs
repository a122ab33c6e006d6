// node-sd-webui, as its README uses it. Its address has the key.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import sdwebui from "node-sd-webui";
import { addressWithKey, prompt, save } from "./shared.mjs";

const client = sdwebui({ apiUrl: addressWithKey });
const small = { prompt, seed: 5, steps: 3, width: 64, height: 64, samplingMethod: "Euler a" };
const { images } = await client.txt2img({ ...small, negativePrompt: "blurry" });
assert.equal(images.length, 1);
await save("made", Buffer.from(images[0], "base64"));
const read = await client.pngInfo({ imageData: images[0] });
assert.equal(read.prompt, prompt);
assert.equal(read.negativePrompt, "blurry");
assert.equal(read.steps, 3);
const several = await client.txt2img({ ...small, batchSize: 2, batchCount: 2 });
assert.equal(several.images.length, 4);
const larger = await client.txt2img({
  ...small,
  hires: { steps: 2, denoisingStrength: 0.7, upscaler: "Latent", upscaleBy: 2, resizeWidthTo: 0, resizeHeigthTo: 0 },
});
await save("larger", Buffer.from(larger.images[0], "base64"));
const again = await client.img2img({ ...small, imageData: images });
await save("again", Buffer.from(again.images[0], "base64"));
await assert.rejects(client.txt2img({ ...small, samplingMethod: "Missing" }));
await assert.rejects(client.txt2img({ ...small, script: { name: "x/y plot" } }));
