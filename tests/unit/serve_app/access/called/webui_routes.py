"""Routes of the WebUI's API, by who may call them."""

from __future__ import annotations

from typing import Any

from events.store.records import Scope

_NO_STEPS = {"json": {"steps": 0, "image": 7, "resize_mode": 9}}
_LISTS = (
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
_OTHERS: tuple[tuple[str, Scope, int, dict[str, Any]], ...] = (
    ("txt2img", Scope.GENERATE, 422, _NO_STEPS),
    ("extra-single-image", Scope.GENERATE, 422, _NO_STEPS),
    ("extra-batch-images", Scope.GENERATE, 422, _NO_STEPS),
    ("img2img", Scope.GENERATE, 404, _NO_STEPS),
    ("png-info", Scope.READ, 422, _NO_STEPS),
    ("options", Scope.GENERATE, 200, {"json": {}}),
    ("interrupt", Scope.CANCEL, 200, {}),
    ("skip", Scope.CANCEL, 200, {}),
    ("refresh-checkpoints", Scope.READ, 200, {}),
    ("refresh-vae", Scope.READ, 200, {}),
    ("refresh-loras", Scope.READ, 200, {}),
    ("refresh-embeddings", Scope.READ, 200, {}),
    ("interrogate", Scope.READ, 400, {}),
    ("unload-checkpoint", Scope.READ, 400, {}),
    ("reload-checkpoint", Scope.READ, 400, {}),
)
WEBUI_ROUTES: tuple[tuple[str, str, Scope, int, dict[str, Any]], ...] = (
    *(("GET", f"/sdapi/v1/{path}", Scope.READ, 200, {}) for path in _LISTS),
    *(("POST", f"/sdapi/v1/{path}", *row) for path, *row in _OTHERS),
)
