"""Every route, and what each kind of caller gets there; see `test_authorization.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from blake3 import blake3

from actors.worker.png import encode_png
from events.store.records import Scope
from tests.support.generate_bodies import diffusion_body, workflow_body
from tests.unit.serve_app.access.called.comfyui_routes import COMFYUI_ROUTES
from tests.unit.serve_app.access.called.webui_routes import WEBUI_ROUTES


@dataclass(frozen=True)
class Row:
    """`{diffusion}`, `{workflow}` and `{called}` are jobs of Alice's that are completed, the last
    one with a callback, and `{failed}` is one that is not; `{key}` is a key and `{endpoint}` an
    endpoint of hers.

    A caller without a key, and one whose key was revoked or has expired, gets 401; a key with every
    scope but the route's and `admin` gets 403. Without `scope` no key is needed, and all get `own`.
    """

    method: str
    path: str
    """As the document has it."""
    scope: Scope | None
    own: int
    """What Alice gets, with this scope alone."""
    foreign: int
    """What Bob gets for Alice's things, with the same scope."""
    url: str = ""
    """The path with its places filled in, and the query, where that differs from the path."""
    request: dict[str, Any] = field(default_factory=dict)
    """What else is sent, as httpx takes it."""
    administers: bool = False
    """It names the jobs of other owners, and shows nothing of their content."""
    is_owned: bool = False
    """Administrators may do it with another owner's things, too."""
    in_document: bool = True

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


GENERATE, READ, CANCEL, ADMIN = Scope.GENERATE, Scope.READ, Scope.CANCEL, Scope.ADMIN
ENDPOINTS, METRICS = Scope.ENDPOINTS, Scope.METRICS
OPENAI = "/v1/images"
NO_PICTURE = {"json": {"prompt": "", "n": 0}}
KNOWN = encode_png(np.ones((8, 8, 3), np.uint8), {})
V2_ASSETS, V2_JOBS = "/api/v2/assets", "/api/v2/jobs"
V2_HASH = f"blake3:{blake3(KNOWN).hexdigest()}"
HASH = {"json": {"hash": V2_HASH}}
ASSET = {"files": {"file": ("a.png", encode_png(np.zeros((8, 8, 3), np.uint8), {}))}}
GRAPH = {"json": workflow_body()}
PARAMETERS = {"json": diffusion_body()}
V2_JOB = {"json": {"workflow": workflow_body()["prompt"]}}
UPLOAD = {"files": {"image": ("a.png", encode_png(np.zeros((8, 8, 3), np.uint8), {}))}}
NOBODY = "http://127.0.0.1:9999/"
"""Where nobody answers, which is an outcome like others."""
JOB, KEY, FILE = "/v1/jobs/{id}", "/v1/keys/{id}", "/files/{request_id}/{name}"
ANY_JOB, ANY_JOB_URL = "/v1/admin/jobs/{id}", "/v1/admin/jobs/{diffusion}"
REASON = {"json": {"reason": "It floods the disk."}}
OWN, OWN_URL = "/v1/endpoints/{id}", "/v1/endpoints/{endpoint}"
FILE_URL = "/files/{diffusion}/0.png?token={token}"

# fmt: off
ROUTES = [
    Row("POST", "/workflow/v1/generate", GENERATE, 202, 202, request=GRAPH),
    Row("POST", "/api/v1/workflow/generate", GENERATE, 202, 202, request=GRAPH),
    Row("POST", "/diffusion/v1/generate", GENERATE, 202, 202, request=PARAMETERS),
    Row("POST", "/api/v1/diffusion/generate", GENERATE, 202, 202, request=PARAMETERS),
    Row("POST", "/workflow/v1/check", GENERATE, 200, 200, request=GRAPH),
    Row("POST", "/diffusion/v1/check", GENERATE, 200, 200, request=PARAMETERS),
    Row("GET", p := "/workflow/v1/result", READ, 200, 404, p + "?request_id={workflow}"),
    Row("GET", p := "/api/v1/workflow/result", READ, 200, 404, p + "?request_id={workflow}"),
    Row("GET", p := "/diffusion/v1/result", READ, 200, 404, p + "?request_id={diffusion}"),
    Row("GET", p := "/api/v1/diffusion/result", READ, 200, 404, p + "?request_id={diffusion}"),
    Row("GET", "/v1/jobs", READ, 200, 200),
    Row("GET", JOB, READ, 200, 404, "/v1/jobs/{diffusion}"),
    Row("GET", f"{JOB}/result", READ, 200, 404, "/v1/jobs/{workflow}/result"),
    Row("POST", f"{JOB}/cancel", CANCEL, 200, 404, "/v1/jobs/{diffusion}/cancel"),
    Row("GET", f"{JOB}/callbacks", READ, 200, 404, "/v1/jobs/{called}/callbacks"),
    Row("POST", p := f"{JOB}/callbacks/redeliver", GENERATE, 202, 404, p.format(id="{called}")),
    Row("POST", p := "/v1/callbacks/test", GENERATE, 200, 200, f"{p}?callback_url={NOBODY}"),
    Row("DELETE", JOB, CANCEL, 200, 404, "/v1/jobs/{diffusion}"),
    Row("GET", p := f"{JOB}/events", READ, 200, 404, p.format(id="{failed}")),
    Row("GET", "/v1/events", READ, 410, 410, "/v1/events?cursor=999"),  # else it has no end
    Row("GET", "/v1/usage", READ, 200, 200),
    Row("POST", "/v1/uploads", GENERATE, 200, 200, request=UPLOAD),
    Row("GET", "/v1/uploads", READ, 200, 200),
    Row("GET", "/v1/uploads/{name}", READ, 200, 404, "/v1/uploads/a.png"),
    Row("DELETE", "/v1/uploads/{name}", GENERATE, 204, 404, "/v1/uploads/a.png"),
    Row("GET", "/v1/models", READ, 200, 200),
    Row("GET", "/v1/samplers", READ, 200, 200),
    Row("GET", "/v1/schedulers", READ, 200, 200),
    Row("GET", "/v1/object_info", READ, 200, 200),
    # Administrators see every owner's jobs, but nothing of what was asked for.
    Row("GET", "/v1/admin/jobs", ADMIN, 200, 200, administers=True),
    Row("GET", "/v1/admin/jobs/blocked", ADMIN, 200, 200, administers=True),
    Row("GET", ANY_JOB, ADMIN, 200, 200, ANY_JOB_URL, administers=True),
    Row("POST", f"{ANY_JOB}/cancel", ADMIN, 200, 200, f"{ANY_JOB_URL}/cancel", administers=True),
    Row("POST", p := f"{ANY_JOB}/quarantine", ADMIN, 200, 200, p.format(id="{failed}"), REASON,
        administers=True),
    Row("POST", p := f"{ANY_JOB}/resubmit", ADMIN, 202, 202, p.format(id="{failed}"),
        administers=True),
    # They are trusted with every owner's keys, too.
    Row("GET", "/v1/keys", ADMIN, 200, 200),
    Row("POST", "/v1/keys", ADMIN, 201, 201, request={"json": {"owner": "carol"}}),
    Row("GET", KEY, ADMIN, 200, 200, "/v1/keys/{key}"),
    Row("PATCH", KEY, ADMIN, 200, 200, "/v1/keys/{key}", {"json": {"name": "phone"}}),
    Row("DELETE", KEY, ADMIN, 200, 200, "/v1/keys/{key}"),
    Row("POST", f"{KEY}/rotate", ADMIN, 201, 201, "/v1/keys/{key}/rotate"),
    # An endpoint that has an owner is theirs, and the administrators'.
    Row("GET", "/v1/endpoints", ENDPOINTS, 200, 200),
    Row("POST", p := "/v1/endpoints", ENDPOINTS, 201, 201, p, {"json": {"id": "b", "gpus": 0}}),
    Row("GET", OWN, ENDPOINTS, 200, 404, OWN_URL, is_owned=True),
    Row("PATCH", OWN, ENDPOINTS, 200, 404, OWN_URL, {"json": {"max_steps": 9}}, is_owned=True),
    Row("DELETE", OWN, ENDPOINTS, 202, 404, OWN_URL, is_owned=True),
    # The URL of an image is a capability.
    Row("GET", FILE, None, 200, 200, FILE_URL),
    Row("HEAD", FILE, None, 200, 200, FILE_URL, in_document=False),
    # Protocols of others. Each path of ComfyUI's API has twins, which are the same routes.
    *(Row(a, b, scope, own, foreign, url, request, in_document=False)
      for a, b, scope, own, foreign, url, request in COMFYUI_ROUTES),
    # What is answered once a job has ended is asked for something impossible.
    Row("POST", f"{OPENAI}/generations", GENERATE, 400, 400, request=NO_PICTURE, in_document=False),
    Row("POST", f"{OPENAI}/edits", GENERATE, 400, 400, request=UPLOAD, in_document=False),
    Row("GET", "/v1/models/{id}", READ, 200, 200, "/v1/models/default", in_document=False),
    *(Row(a, b, scope, n, n, request=c, in_document=False) for a, b, scope, n, c in WEBUI_ROUTES),
    Row("POST", V2_ASSETS, GENERATE, 201, 201, request=ASSET, in_document=False),
    Row("POST", f"{V2_ASSETS}/from-hash", GENERATE, 200, 404, request=HASH, in_document=False),
    Row("HEAD", f"{V2_ASSETS}/by-hash/{V2_HASH}", READ, 200, 404, in_document=False),
    Row("GET", p := V2_ASSETS + "/{asset}", READ, 200, 404, in_document=False),
    Row("GET", p + "/content", READ, 200, 404, in_document=False),
    Row("DELETE", p, GENERATE, 204, 404, in_document=False),
    Row("POST", V2_JOBS, GENERATE, 201, 201, request=V2_JOB, in_document=False),
    Row("GET", V2_JOBS, READ, 200, 200, in_document=False),
    Row("GET", p := V2_JOBS + "/{workflow}", READ, 200, 404, in_document=False),
    Row("GET", p + "/workflow", READ, 200, 404, in_document=False),
    Row("GET", p + "/events", READ, 200, 404, in_document=False),
    Row("POST", p + "/cancel", CANCEL, 200, 404, in_document=False),
    Row("GET", "/metrics", METRICS, 200, 200),
    Row("GET", "/health/live", None, 200, 200),
    Row("GET", "/health/ready", None, 200, 200),
    Row("HEAD", "/health/live", None, 200, 200, in_document=False),
    Row("HEAD", "/health/ready", None, 200, 200, in_document=False),
]
# fmt: on
