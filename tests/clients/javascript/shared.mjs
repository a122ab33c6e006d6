// What the programs have in common: where the service is, the key, and the graph.
import assert from "node:assert/strict";
import { writeFile } from "node:fs/promises";

export const { URL: address, KEY: key, FORWARDED: forwarded } = process.env;
export const host = address.replace("http://", "");
/** An address for programs that have no field for a key. */
export const addressWithKey = `${address}/key/${key}`;
export const prompt = "a large red circle on white";
export const graph = JSON.parse(process.env.PROMPT);

/** The graph with a model that does not exist. */
export function brokenGraph() {
  const broken = structuredClone(graph);
  broken["4"].inputs.ckpt_name = "missing.safetensors";
  return broken;
}

/** A graph that inverts an uploaded image. */
export function inverted(image) {
  return {
    1: { class_type: "LoadImage", inputs: { image } },
    2: { class_type: "ImageInvert", inputs: { image: ["1", 0] } },
    3: { class_type: "SaveImage", inputs: { images: ["2", 0], filename_prefix: "inverted" } },
  };
}

/** Write a picture for the test, which compares it with the requested one. */
export async function save(name, content) {
  const bytes = Buffer.from(content instanceof Blob ? await content.arrayBuffer() : content);
  assert.equal(bytes.subarray(1, 4).toString(), "PNG");
  await writeFile(`${name}.png`, bytes);
  return bytes;
}
