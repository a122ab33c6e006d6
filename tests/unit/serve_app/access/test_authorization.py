"""Who may call what: every route of the OpenAPI document, by every kind of caller.

A new route fails here until it has its row in `ROUTES`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx
import numpy as np
import pytest
from blake3 import blake3

from actors.worker.result_file import encode_png
from events.decisions import Quarantine
from events.ids import new_id
from events.store.records import Endpoint, Scope
from serve_app.access.api_keys import mint
from storage.service_secret import file_token
from tests.support.edge import Client, Edge, lasting_headers, submit
from tests.support.generate_bodies import diffusion_body, workflow_body


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
OTHER = {"files": {"picture": UPLOAD["files"]["image"]}}
NOBODY = "http://127.0.0.1:9999/"
"""Where nobody answers, which is an outcome like others."""
JOB, KEY, FILE = "/v1/jobs/{id}", "/v1/keys/{id}", "/files/{request_id}/{name}"
ANY_JOB, ANY_JOB_URL = "/v1/admin/jobs/{id}", "/v1/admin/jobs/{diffusion}"
REASON = {"json": {"reason": "It floods the disk."}}
OWN, OWN_URL = "/v1/endpoints/{id}", "/v1/endpoints/{endpoint}"
NAMED_WORKFLOW, NAMED_URL = "/v1/workflows/{name}", "/v1/workflows/{named}"
NEW_WORKFLOW = {"json": {"name": "new", **workflow_body()}}
NO_INPUTS = {"json": {"inputs": {}}}
FILE_URL = "/files/{diffusion}/0.png?token={token}"

NAMED = {"json": {"delete": ["0199a1b2-0000-7000-8000-000000000000"]}}
VIEW_URL = "/view?filename=darkroom_00001_.png&subfolder={workflow}"
VALUE = {"json": True}
DATA = "/userdata/a.json"
_COMFYUI_LISTS = (
    "queue", "prompt", "history", "jobs", "object_info", "models", "embeddings", "features",
    "system_stats", "users", "extensions", "settings", "settings/a", "userdata", "history_v2",
    "models/configs", "internal/folder_paths", "internal/logs", "internal/logs/raw",
    "internal/files/output",
)  # fmt: skip
COMFYUI_ROUTES: tuple[tuple[str, str, Scope, int, int, str, dict[str, Any]], ...] = (
    *(("GET", f"/{path}", READ, 200, 200, "", {}) for path in _COMFYUI_LISTS),
    ("POST", "/prompt", GENERATE, 200, 200, "", GRAPH),
    ("POST", "/queue", CANCEL, 200, 200, "", NAMED),
    ("POST", "/interrupt", CANCEL, 200, 200, "", {}),
    ("POST", "/jobs/{id}/cancel", CANCEL, 200, 404, "/jobs/{workflow}/cancel", {}),
    ("GET", "/history/{id}", READ, 200, 200, "/history/{workflow}", {}),
    ("POST", "/history", CANCEL, 200, 200, "", NAMED),
    ("GET", "/history_v2/{id}", READ, 200, 200, "/history_v2/{workflow}", {}),
    ("POST", "/free", READ, 200, 200, "", {}),
    ("PATCH", "/internal/logs/subscribe", READ, 200, 200, "", {}),
    ("GET", "/jobs/{id}", READ, 200, 404, "/jobs/{workflow}", {}),
    ("GET", "/view", READ, 200, 404, VIEW_URL, {}),
    ("POST", "/upload/image", GENERATE, 200, 200, "", UPLOAD),
    ("POST", "/settings", GENERATE, 200, 200, "", {"json": {"a": True}}),
    ("POST", "/settings/a", GENERATE, 200, 200, "", VALUE),
    ("GET", DATA, READ, 200, 404, "", {}),
    ("POST", "/userdata/b.json", GENERATE, 200, 200, "", VALUE),
    ("DELETE", DATA, GENERATE, 204, 404, "", {}),
)
_NO_STEPS = {"json": {"steps": 0, "image": 7, "resize_mode": 9}}
_WEBUI_LISTS = (
    "progress", "options", "samplers", "schedulers", "upscalers", "latent-upscale-modes",
    "sd-models", "sd-vae", "loras", "embeddings", "prompt-styles", "hypernetworks",
    "face-restorers", "realesrgan-models", "extensions", "script-info", "scripts", "cmd-flags",
    "memory",
)  # fmt: skip
_WEBUI_OTHERS: tuple[tuple[str, Scope, int, dict[str, Any]], ...] = (
    ("txt2img", GENERATE, 422, _NO_STEPS),
    ("extra-single-image", GENERATE, 422, _NO_STEPS),
    ("extra-batch-images", GENERATE, 422, _NO_STEPS),
    ("img2img", GENERATE, 404, _NO_STEPS),
    ("png-info", READ, 422, _NO_STEPS),
    ("options", GENERATE, 200, {"json": {}}),
    ("interrupt", CANCEL, 200, {}),
    ("skip", CANCEL, 200, {}),
    ("refresh-checkpoints", READ, 200, {}),
    ("refresh-vae", READ, 200, {}),
    ("refresh-loras", READ, 200, {}),
    ("refresh-embeddings", READ, 200, {}),
    ("interrogate", READ, 400, {}),
    ("unload-checkpoint", READ, 400, {}),
    ("reload-checkpoint", READ, 400, {}),
)
WEBUI_ROUTES: tuple[tuple[str, str, Scope, int, dict[str, Any]], ...] = (
    *(("GET", f"/sdapi/v1/{path}", READ, 200, {}) for path in _WEBUI_LISTS),
    *(("POST", f"/sdapi/v1/{path}", *row) for path, *row in _WEBUI_OTHERS),
)

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
    Row("GET", "/v1/workflows", READ, 200, 200),
    Row("POST", "/v1/workflows", GENERATE, 201, 201, request=NEW_WORKFLOW),
    Row("GET", NAMED_WORKFLOW, READ, 200, 404, NAMED_URL),
    Row("GET", f"{NAMED_WORKFLOW}/schema", READ, 200, 404, f"{NAMED_URL}/schema"),
    Row("PATCH", NAMED_WORKFLOW, GENERATE, 200, 404, NAMED_URL, {"json": {"marked": 1}}),
    Row("POST", p := f"{NAMED_WORKFLOW}/generate", GENERATE, 202, 404, p.format(name="{named}"),
        NO_INPUTS),
    Row("POST", f"{NAMED_WORKFLOW}/check", GENERATE, 200, 404, f"{NAMED_URL}/check", NO_INPUTS),
    Row("DELETE", NAMED_WORKFLOW, GENERATE, 204, 404, NAMED_URL),
    Row("POST", "/mcp", READ, 400, 400, request={"json": {}}, in_document=False),
    # The URL of an image is a capability.
    Row("GET", FILE, None, 200, 200, FILE_URL),
    Row("HEAD", FILE, None, 200, 200, FILE_URL, in_document=False),
    # Protocols of others. Each path of ComfyUI's API has twins, which are the same routes.
    *(Row(a, b, scope, own, foreign, url, request, in_document=False)
      for a, b, scope, own, foreign, url, request in COMFYUI_ROUTES),
    # What is answered once a job has ended is asked for something impossible.
    Row("POST", f"{OPENAI}/generations", GENERATE, 400, 400, request=NO_PICTURE, in_document=False),
    Row("POST", f"{OPENAI}/edits", GENERATE, 400, 400, request=UPLOAD, in_document=False),
    Row("POST", f"{OPENAI}/variations", GENERATE, 400, 400, request=OTHER, in_document=False),
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


pytestmark = pytest.mark.edge(owner_rate_per_s=0, rate_per_s=0)

PAST = datetime(2020, 1, 1, tzinfo=UTC)
UNKNOWN_JOB = "0199a1b2-0000-7000-8000-000000000000"


IN_ORDER = sorted(ROUTES, key=lambda row: row.method == "DELETE")
"""Nothing is deleted before all others were called: so all share the things of Alice's."""
as_owner_and_admin = pytest.mark.parametrize("admin", [False, True])


def test_the_table_has_every_route_of_the_document_and_no_other(edge: Edge) -> None:
    document = {
        (method.upper(), path)
        for path, methods in edge.app.openapi()["paths"].items()
        for method in methods
    }
    listed = [(row.method, row.path) for row in ROUTES if row.in_document]
    assert sorted(listed) == sorted(document)


@pytest.fixture
async def places(edge: Edge) -> dict[str, str]:
    """The ids and names of the resources that belong to Alice."""
    async with await edge.client("alice") as alice:
        ids = {}
        for name, path, request in (
            ("diffusion", "/diffusion/v1/generate", PARAMETERS),
            ("workflow", "/workflow/v1/generate", GRAPH),
            ("called", f"/diffusion/v1/generate?callback_url={NOBODY}", PARAMETERS),
        ):
            answer = await alice.post(path, **request)
            ids[name] = answer.json()["request_id"]
            await edge.run(ids[name])
        ids["failed"] = await submit(alice)
        await edge.execute(ids["failed"], Quarantine("No."))
        assert (await alice.post("/v1/uploads", **UPLOAD)).status_code == 200
        named = {"json": {"name": "circle", **workflow_body()}}
        assert (await alice.post("/v1/workflows", **named)).status_code == 201
        known = await alice.post(V2_ASSETS, files={"file": ("k.png", KNOWN)})
        ids["asset"] = known.json()["id"]
        await alice.post("/userdata/a.json", content=b"{}")
    await edge.project()
    await edge.services.endpoints.put(Endpoint("alices", owner="alice"))
    return ids | {
        "endpoint": "alices",
        "named": "circle",
        "token": file_token(edge.services.secret, ids["diffusion"], "0.png"),
        "key": (await edge.key("alice")).split("_")[1],
    }


async def call(client: Client, row: Row, places: dict[str, str]) -> httpx.Response:
    return await client.request(row.method, url_of(row, places), **row.request)


def url_of(row: Row, places: dict[str, str]) -> str:
    return (row.url or row.path).format(**places)


def refusal_of(answer: httpx.Response) -> tuple[int, Any]:
    """Status and stable name of an error, in our form or in an adapter's; a head has none."""
    if answer.status_code < 400:
        return answer.status_code, None
    if not answer.content:
        names = {401: "unauthorized", 403: "forbidden"}
        return answer.status_code, names.get(answer.status_code)
    error = answer.json()["error"]
    return answer.status_code, error if isinstance(error, str) else error.get("code") or error[
        "type"
    ]


async def bare_call(client: Client, row: Row, places: dict[str, str]) -> httpx.Response:
    """Without query and body: nothing of them may be looked at before the key."""
    return await client.request(row.method, url_of(row, places).partition("?")[0])


def scopes_of(row: Row, *, admin: bool) -> list[Scope]:
    return [ADMIN] if admin else [row.scope] if row.scope else []


@as_owner_and_admin
async def test_a_key_of_its_scope_is_enough_and_admin_is_every_scope(
    edge: Edge, places: dict[str, str], admin: bool
) -> None:
    for row in IN_ORDER:
        async with await edge.client("alice", scopes=scopes_of(row, admin=admin)) as alice:
            assert (await call(alice, row, places)).status_code == row.own, row


@as_owner_and_admin
async def test_another_owner_neither_sees_nor_changes_anything_of_alices(
    edge: Edge, places: dict[str, str], admin: bool
) -> None:
    for row in IN_ORDER:
        owner = f"bob-{new_id()}"  # who has nothing yet, whatever another row has made
        async with await edge.client(owner, scopes=scopes_of(row, admin=admin)) as bob:
            await require_hidden(bob, row, places, admin=admin)


async def require_hidden(bob: Client, row: Row, places: dict[str, str], *, admin: bool) -> None:
    answer = await call(bob, row, places)
    if row.is_owned and admin:
        assert answer.status_code == row.own, row
        return
    assert answer.status_code == row.foreign, row
    if row.administers:
        assert PARAMETERS["json"]["prompt"] not in answer.text, row
        assert places["token"] not in answer.text, row
        return
    assert places["diffusion"] not in answer.text, row
    assert places["workflow"] not in answer.text, row
    nobodys = places | dict.fromkeys(("diffusion", "workflow", "called", "failed"), UNKNOWN_JOB)
    nobodys |= {"endpoint": "unknown", "asset": UNKNOWN_JOB, "named": "unknown"}
    if row.scope and url_of(row, nobodys) != url_of(row, places):
        unknown = await call(bob, row, nobodys)
        assert unknown.status_code == row.foreign, row
        assert unknown.content == answer.content, row
        assert lasting_headers(unknown) == lasting_headers(answer), row


async def test_a_caller_without_a_key_that_lives_is_401(edge: Edge, places: dict[str, str]) -> None:
    everything = tuple(Scope)
    revoked = await edge.key("alice", scopes=everything)
    assert await edge.services.keys.revoke(revoked.split("_")[1], datetime.now(UTC))
    expired = await edge.key("alice", scopes=everything, expires_at=PAST)
    unknown = mint("alice", "laptop", everything, created_at=PAST)[0]
    for key in (None, "nonsense", unknown, revoked, expired):
        async with edge.client_with(key) as client:
            for row in ROUTES:
                expected = (401, "unauthorized") if row.scope else (row.own, None)
                assert refusal_of(await call(client, row, places)) == expected, (row, key)
                if row.scope and key is None:
                    assert refusal_of(await bare_call(client, row, places)) == expected, row


async def test_every_other_scope_is_403(edge: Edge, places: dict[str, str]) -> None:
    for row in ROUTES:
        others = [scope for scope in Scope if scope not in {row.scope, ADMIN}]
        expected = (403, "forbidden") if row.scope else (row.own, None)
        async with await edge.client("alice", scopes=others) as client:
            assert refusal_of(await call(client, row, places)) == expected, row
            if row.scope:
                assert refusal_of(await bare_call(client, row, places)) == expected, row
