"""No secret is ever in a log line, a stored event, an error or the database."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from events.cloud_events import encode
from events.errors import LogUnavailable
from events.store.records import Scope
from storage.service_secret import webhook_secret
from tests.support.edge import Client, Edge
from tests.support.failing_log import FailingLog
from tests.support.generate_bodies import diffusion_body, workflow_body

ROOT = Path(__file__).parents[3]
PACKAGES = (
    "actors",
    "cli",
    "comfyui",
    "events",
    "local",
    "operations",
    "serve_app",
    "settings",
    "storage",
)
PAST = datetime(2020, 1, 1, tzinfo=UTC)
GENERATE = "/workflow/v1/generate"
CALLBACK = "https://hooks.example.com/done"


def secrets_in(key: str, webhook: str) -> set[str]:
    """The parts that nobody else may know."""
    return {key.split("_")[2], webhook.removeprefix("whsec_")}


async def administer(admin: Client) -> tuple[list[dict[str, Any]], list[httpx.Response]]:
    """Every call about keys: what was made, and the answers that must not show it."""
    alice = (await admin.post("/v1/keys", json={"owner": "alice"})).json()
    limits = {"rate_per_s": 0.001, "burst": 1, "endpoints": ["fast"]}
    slow = (await admin.post("/v1/keys", json={"owner": "alice", "limits": limits})).json()
    dead = (await admin.post("/v1/keys", json={"owner": "alice"})).json()
    rotated = (await admin.post(f"/v1/keys/{dead['id']}/rotate?grace_s=60")).json()
    answers = [
        await admin.post(f"/v1/keys/{dead['id']}/rotate"),
        await admin.patch(f"/v1/keys/{dead['id']}", json={"name": "phone"}),
        await admin.delete(f"/v1/keys/{dead['id']}"),
        await admin.get("/v1/keys"),
        await admin.get(f"/v1/keys/{alice['id']}"),
        await admin.post("/v1/keys", json={"owner": "alice", "key": alice["key"]}),
    ]
    return [alice, slow, dead, rotated], answers


async def use(client: Client) -> list[httpx.Response]:
    """What a caller does with a key, in good order and not."""
    body = workflow_body()
    idempotent = {"Idempotency-Key": "a"}
    first = await client.post(
        GENERATE, json=body, params={"callback_url": CALLBACK}, headers=idempotent
    )
    job = f"/v1/jobs/{first.json().get('request_id', 'x')}"
    return [
        first,
        await client.post(GENERATE, json=body, headers=idempotent),
        await client.post("/diffusion/v1/generate", json=diffusion_body()),
        await client.post(GENERATE, json={}),
        await client.post(GENERATE, content=b"{"),
        await client.post(GENERATE, json=body, params={"callback_url": "http://10.0.0.1/"}),
        await client.post(GENERATE, json=body, params={"endpoint": "fast"}),
        await client.get("/v1/jobs"),
        await client.get(job),
        await client.post(f"{job}/cancel"),
        await client.get("/v1/keys"),
        await client.get("/nowhere"),
        await client.delete(GENERATE),
    ]


async def fail(client: Client, log: FailingLog) -> list[httpx.Response]:
    answers = []
    for error in (LogUnavailable(), RuntimeError("a bug")):
        log.append_error = error
        answers.append(await client.post(GENERATE, json=workflow_body()))
    log.recover()
    return answers


async def misuse(anyone: Client, key: str) -> list[httpx.Response]:
    """A key that is nearly right still has its secret."""
    typo = key[:-1] + ("a" if key[-1] != "a" else "b")
    headers = (f"Bearer {typo}", f"Basic {key}", key, f"Bearer {key} {key}", f"Bearer {key}\t;")
    return [await anyone.get("/v1/jobs", headers={"Authorization": each}) for each in headers]


async def send_in_address(anyone: Client, key: str) -> list[httpx.Response]:
    """A key in the path and one in a header of its own, also with errors of all kinds."""
    given = f"/key/{key}"
    paths = ("/queue", "/sdapi/v1/samplers", "/v1/jobs", "/nowhere", "/history/x", "/view")
    answers = [await anyone.get(f"{given}{path}") for path in paths]
    answers += [
        await anyone.get("/v1/jobs", headers={"X-API-Key": key}),
        await anyone.post(f"{given}/prompt", content=b"{"),
        await anyone.post(f"{given}/prompt", json=workflow_body()),
        await anyone.delete(f"{given}/prompt"),
        await anyone.get(f"/key/{key}x/queue"),
        await anyone.get("/v1/jobs", headers={"X-API-Key": f"{key}x"}),
    ]
    return answers


async def test_requests_with_keys_leave_no_secret_behind(
    edge: Edge, log: FailingLog, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    edge.name_server.answers["hooks.example.com"] = ("8.8.8.8",)
    admin_key = await edge.key("root", scopes=[Scope.ADMIN])
    async with edge.client_with(admin_key) as admin:
        made, answers = await administer(admin)
    keys = [each["key"] for each in made]
    for key in keys:
        async with edge.client_with(key) as client:
            answers += await use(client)
            answers += await fail(client, log)
        async with edge.client_with(None) as anyone:
            answers += await misuse(anyone, key)
            answers += await send_in_address(anyone, key)
            log.append_error = RuntimeError("a bug")
            answers.append(await anyone.post(f"/key/{key}/prompt", json=workflow_body()))
            log.recover()

    expected = {200, 202, 400, 401, 403, 404, 405, 409, 415, 429, 500, 503}
    assert {answer.status_code for answer in answers} == expected
    service_secret = edge.services.secret
    own = webhook_secret(service_secret, admin_key.split("_")[1])
    secrets = {service_secret.decode()} | secrets_in(admin_key, own)
    for each in made:
        secrets |= secrets_in(each["key"], each["webhook_secret"])
    async with log.reader(after=0) as reader:
        events = [encode(event).decode() for event in await reader.next(1)]
    assert len(events) >= 4
    places = {
        "answers": "".join(f"{answer.headers} {answer.text}" for answer in answers),
        "logs": "".join(
            f"{record.getMessage()} {vars(record)}"
            for record in caplog.records
            if record.name != "httpx"  # It logs the addresses that this test calls.
        ),
        "events": "".join(events),
        "files": "".join(
            path.read_bytes().decode("latin-1") for path in tmp_path.glob("darkroom.sqlite3*")
        ),
    }
    leaks = [name for name, text in places.items() if any(each in text for each in secrets)]
    assert leaks == []
    assert made[0]["id"] in places["logs"]
    assert made[0]["id"] in places["files"]


def comparisons() -> Iterator[tuple[Path, str]]:
    """Every `==` and `!=` of the service."""
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Compare) and any(
                    isinstance(each, ast.Eq | ast.NotEq) for each in node.ops
                ):
                    yield path, ast.unparse(node)


def test_secrets_are_compared_in_constant_time_alone() -> None:
    found = list(comparisons())
    assert len(found) > 50
    risky = re.compile(r"secret|token|signature|password", re.IGNORECASE)
    assert [each for each in found if risky.search(each[1])] == []
