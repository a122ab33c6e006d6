// The part of SillyTavern's own server that makes pictures, from its package, without the rest of
// it: no accounts, no page. It prints the port that it listens on.
import { fileURLToPath } from "node:url";
import express from "express";
import { setConfigFilePath } from "sillytavern/src/util.js";

// Its modules read it as they are loaded.
setConfigFilePath(fileURLToPath(import.meta.resolve("sillytavern/default/config.yaml")));
const { router } = await import("sillytavern/src/endpoints/stable-diffusion.js");

const app = express();
app.use(express.json({ limit: "50mb" }));
app.use("/api/sd", router);
const server = app.listen(0, "127.0.0.1", () => console.log(`port ${server.address().port}`));
