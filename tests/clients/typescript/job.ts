// A job by the generated TypeScript client: a workflow, its result, its picture.

import { client } from "./client/client.gen.js";
import { generateWorkflow, getFile, workflowResult } from "./client/index.js";
import type { WorkflowRequest } from "./client/index.js";

const body: WorkflowRequest = {
  prompt: {
    "3": {
      class_type: "KSampler",
      inputs: {
        cfg: 5,
        denoise: 1,
        latent_image: ["5", 0],
        model: ["4", 0],
        negative: ["7", 0],
        positive: ["6", 0],
        sampler_name: "euler",
        scheduler: "normal",
        seed: 7,
        steps: 4,
      },
    },
    "4": {
      class_type: "CheckpointLoaderSimple",
      inputs: { ckpt_name: "darkroom-shapes.safetensors" },
    },
    "5": { class_type: "EmptyLatentImage", inputs: { batch_size: 1, height: 64, width: 64 } },
    "6": { class_type: "CLIPTextEncode", inputs: { clip: ["4", 1], text: "a red circle on white" } },
    "7": { class_type: "CLIPTextEncode", inputs: { clip: ["4", 1], text: "" } },
    "8": { class_type: "VAEDecode", inputs: { samples: ["3", 0], vae: ["4", 2] } },
    "9": { class_type: "SaveImage", inputs: { filename_prefix: "client", images: ["8", 0] } },
  },
};

client.setConfig({ baseUrl: process.env.URL });
const refused = await generateWorkflow({ body, auth: "wrong" });
if (refused.error?.error.type !== "unauthorized") throw new Error(JSON.stringify(refused.error));

client.setConfig({ auth: process.env.KEY, throwOnError: true });
let { data: job } = await generateWorkflow({ body, throwOnError: true });
while (job.status === 0) {
  const query = { request_id: job.request_id, wait: 60 };
  ({ data: job } = await workflowResult({ query, throwOnError: true }));
}
const url = new URL(job.results?.[0]?.url ?? "");
const [, , request_id, name] = url.pathname.split("/");
const { data } = await getFile({
  path: { request_id, name },
  query: { token: url.searchParams.get("token") ?? "" },
  parseAs: "arrayBuffer",
  throwOnError: true,
});
const picture = new TextDecoder("latin1").decode(data as ArrayBuffer);
if (!picture.slice(1).startsWith("PNG")) throw new Error(`no picture: ${picture.slice(0, 40)}`);
console.log(job.state);
