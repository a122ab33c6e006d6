"""Routes of the WebUI's API that list something."""

from __future__ import annotations

WEBUI = "/sdapi/v1"
WEBUI_LISTS = (
    "progress",
    "options",
    "samplers",
    "schedulers",
    "upscalers",
    "latent-upscale-modes",
    "sd-models",
    "sd-vae",
    "loras",
    "embeddings",
    "prompt-styles",
    "hypernetworks",
    "face-restorers",
    "realesrgan-models",
    "extensions",
    "script-info",
    "scripts",
    "cmd-flags",
    "memory",
)
