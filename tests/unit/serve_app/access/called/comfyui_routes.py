"""Routes of ComfyUI's API, by who may call them."""

from __future__ import annotations

from typing import Any

import numpy as np

from actors.worker.png import encode_png
from events.store.records import Scope
from tests.support.generate_bodies import workflow_body

GENERATE, READ, CANCEL = Scope.GENERATE, Scope.READ, Scope.CANCEL
GRAPH = {"json": workflow_body()}
UPLOAD = {"files": {"image": ("a.png", encode_png(np.zeros((8, 8, 3), np.uint8), {}))}}
NAMED = {"json": {"delete": ["0199a1b2-0000-7000-8000-000000000000"]}}
VIEW_URL = "/view?filename=darkroom_00001_.png&subfolder={workflow}"
VALUE = {"json": True}
FILE = "/userdata/a.json"
_LISTS = (
    "queue",
    "prompt",
    "history",
    "jobs",
    "object_info",
    "models",
    "embeddings",
    "features",
    "system_stats",
    "users",
    "extensions",
    "settings",
    "settings/a",
    "userdata",
)
COMFYUI_ROUTES: tuple[tuple[str, str, Scope, int, int, str, dict[str, Any]], ...] = (
    *(("GET", f"/{path}", READ, 200, 200, "", {}) for path in _LISTS),
    ("POST", "/prompt", GENERATE, 200, 200, "", GRAPH),
    ("POST", "/queue", CANCEL, 200, 200, "", NAMED),
    ("POST", "/interrupt", CANCEL, 200, 200, "", {}),
    ("POST", "/jobs/{id}/cancel", CANCEL, 200, 404, "/jobs/{workflow}/cancel", {}),
    ("GET", "/history/{id}", READ, 200, 200, "/history/{workflow}", {}),
    ("POST", "/history", CANCEL, 200, 200, "", NAMED),
    ("GET", "/jobs/{id}", READ, 200, 404, "/jobs/{workflow}", {}),
    ("GET", "/view", READ, 200, 404, VIEW_URL, {}),
    ("POST", "/upload/image", GENERATE, 200, 200, "", UPLOAD),
    ("POST", "/settings", GENERATE, 200, 200, "", {"json": {"a": True}}),
    ("POST", "/settings/a", GENERATE, 200, 200, "", VALUE),
    ("GET", FILE, READ, 200, 404, "", {}),
    ("POST", "/userdata/b.json", GENERATE, 200, 200, "", VALUE),
    ("DELETE", FILE, GENERATE, 204, 404, "", {}),
)
