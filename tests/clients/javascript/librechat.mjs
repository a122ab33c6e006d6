// The requests of LibreChat's tools `image_gen_oai` and `image_edit_oai`, with the packages by
// which it sends them. Its other tools always draw 1024 x 1024 pixels, which takes minutes here.
import assert from "node:assert/strict";
import { createReadStream } from "node:fs";
import axios from "axios";
import FormData from "form-data";
import OpenAI from "openai";
import { address, key, prompt, save } from "./shared.mjs";

const baseURL = `${address}/v1`;
const client = new OpenAI({ apiKey: key, baseURL });

const made = await client.images.generate(
  {
    model: "gpt-image-1",
    prompt,
    n: 1,
    background: "auto",
    output_format: "png",
    output_compression: undefined,
    quality: "low",
    size: "auto",
  },
  { signal: null },
);
await save("made", Buffer.from(made.data[0].b64_json, "base64"));

const form = new FormData();
form.append("model", "gpt-image-1");
form.append("prompt", prompt);
form.append("quality", "low");
form.append("size", "auto");
form.append("image[]", createReadStream("photo.png"), { filename: "photo.png", contentType: "image/png" });
const headers = { ...form.getHeaders(), Authorization: `Bearer ${key}` };
const edited = await axios.post("/images/edits", form, { headers, baseURL, apiKey: key });
await save("edited", Buffer.from(edited.data.data[0].b64_json, "base64"));

await assert.rejects(client.images.generate({ model: "gpt-image-1", prompt, background: "transparent" }), {
  status: 400,
});
