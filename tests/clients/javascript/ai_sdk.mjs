// Vercel's AI SDK with its provider for OpenAI, as its documentation uses it.
import assert from "node:assert/strict";
import { APICallError, generateImage } from "ai";
import { createOpenAI } from "@ai-sdk/openai";
import { address, key, prompt, save } from "./shared.mjs";

const openai = createOpenAI({ baseURL: `${address}/v1`, apiKey: key });
const model = openai.image("gpt-image-1");
const few = { size: "64x64", maxRetries: 0, providerOptions: { openai: { quality: "low" } } };
const made = await generateImage({ model, prompt, ...few });
assert.deepEqual(made.warnings, []);
await save("made", made.image.uint8Array);
const several = await generateImage({ model, prompt, n: 2, ...few });
assert.equal(several.images.length, 2);
const edited = await generateImage({
  model,
  prompt: { text: prompt, images: [made.image.uint8Array] },
  ...few,
});
await save("edited", edited.image.uint8Array);
const wrong = openai.image("missing");
await assert.rejects(generateImage({ model: wrong, prompt, ...few }), (error) => {
  assert.ok(APICallError.isInstance(error), String(error));
  assert.equal(error.statusCode, 404);
  assert.match(error.message, /missing/);
  return true;
});
