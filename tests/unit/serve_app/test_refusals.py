"""The whole answer to every request that is refused: status, body and headers."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from events.log import utc_now
from events.store.records import Endpoint, KeyLimits, Scope
from serve_app.access.api_keys import mint
from serve_app.api import create_api
from serve_app.replica import Replica
from tests.support.edge import ALL_SCOPES, Edge, lasting_headers, running_edge
from tests.support.generate_bodies import diffusion_body

PAST = datetime(2020, 1, 1, tzinfo=UTC)
GENERATE = "/diffusion/v1/generate"
UNKNOWN_JOB = "0199a1b2-0000-7000-8000-000000000000"
UNKNOWN_KEY = "aaaaaaaaaaaa"


def assert_refused(
    answer: httpx.Response,
    status: int,
    type: str,
    message: str,
    *,
    extra_info: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
) -> None:
    assert answer.status_code == status
    error = {"type": type, "message": message, "details": "", "extra_info": extra_info or {}}
    assert answer.json() == {"error": error, "node_errors": {}}
    usual = {"content-type": "application/json", "content-length": str(len(answer.content))}
    assert lasting_headers(answer) == usual | (headers or {})


async def limited(edge: Edge, **limits: Any) -> httpx.AsyncClient:
    chosen = KeyLimits(**limits)
    text, key = mint("alice", "test", ALL_SCOPES, created_at=utc_now(), limits=chosen)
    await edge.services.keys.add(key)
    return edge.client_with(text)


async def submit(client: httpx.AsyncClient, key: str | None = None, **query: str) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return await client.post(GENERATE, json=diffusion_body(), params=query, headers=headers)


class TestKeys:
    async def test_a_request_without_a_key(self, edge: Edge) -> None:
        async with edge.client_with(None) as anyone:
            answer = await anyone.get("/v1/jobs")
        message = "Send an API key as Authorization: Bearer <API_KEY>."
        headers = {"www-authenticate": "Bearer"}
        assert_refused(answer, 401, "unauthorized", message, headers=headers)

    async def test_a_key_that_opens_nothing(self, edge: Edge) -> None:
        stranger, _ = mint("eve", "made up", [Scope.READ], created_at=PAST)
        expired = await edge.key(expires_at=PAST)
        headers = {"www-authenticate": 'Bearer error="invalid_token"'}
        for text, message in (
            ("nonsense", "The API key is misspelt."),
            (stranger, "The API key is not known."),
            (expired, "The API key was revoked or has expired."),
        ):
            async with edge.client_with(text) as client:
                answer = await client.get("/v1/jobs")
            assert_refused(answer, 401, "unauthorized", message, headers=headers)

    async def test_a_key_that_may_not(self, edge: Edge) -> None:
        async with await edge.client(scopes=[Scope.READ]) as reader:
            answer = await submit(reader)
        message = "The API key lacks the scope generate."
        extra_info = {"scope": "generate"}
        headers = {"connection": "close"}  # its body is not read
        assert_refused(answer, 403, "forbidden", message, extra_info=extra_info, headers=headers)
        async with await limited(edge, endpoints=("fast",)) as client:
            answer = await submit(client)
        message = "The API key may not use this endpoint."
        assert_refused(answer, 403, "forbidden", message, extra_info={"parameter": "endpoint"})
        message = "The API key may not call this host back."
        extra_info = {"parameter": "callback_url"}
        url = "https://hooks.example.com/"
        async with await limited(edge, callback_hosts=("other.example",)) as client:
            answer = await submit(client, callback_url=url)
            assert_refused(answer, 403, "forbidden", message, extra_info=extra_info)
            answer = await client.post("/v1/callbacks/test", params={"callback_url": url})
            assert_refused(answer, 403, "forbidden", message, extra_info=extra_info)

    async def test_a_key_that_asks_too_often(self, edge: Edge) -> None:
        async with await limited(edge, rate_per_s=0.5, burst=1) as client:
            await client.get("/v1/jobs")
            answer = await client.get("/v1/jobs")
        message = "The key may send 0.5 requests a second."
        assert_refused(answer, 429, "rate_exceeded", message, headers={"retry-after": "2"})

    async def test_a_key_with_too_many_open_jobs(self, edge: Edge) -> None:
        async with await limited(edge, max_open_jobs=1) as client:
            assert (await submit(client)).status_code == 202
            answer = await submit(client)
        message = "The key may have 1 jobs that wait or run."
        assert_refused(answer, 429, "too_many_open_jobs", message, headers={"retry-after": "5"})

    async def test_an_owner_who_asks_too_often(self, tmp_path: Path) -> None:
        async with (
            running_edge(tmp_path, owner_rate_per_s=0.5, owner_burst=1) as edge,
            await edge.client() as one,
            await edge.client() as two,
        ):
            await one.get("/v1/jobs")
            answer = await two.get("/v1/jobs")
        message = "All keys of this owner together may send 0.5 requests a second."
        assert_refused(answer, 429, "rate_exceeded", message, headers={"retry-after": "2"})

    async def test_an_owner_with_too_many_open_jobs(self, tmp_path: Path) -> None:
        async with (
            running_edge(tmp_path, owner_max_open_jobs=1) as edge,
            await edge.client() as one,
            await edge.client() as two,
        ):
            assert (await submit(one)).status_code == 202
            answer = await submit(two)
        message = "All keys of this owner together may have 1 jobs that wait or run."
        assert_refused(answer, 429, "too_many_open_jobs", message, headers={"retry-after": "5"})


class TestJobs:
    async def test_an_unknown_job(self, client: httpx.AsyncClient) -> None:
        for method, path in (
            ("GET", f"/v1/jobs/{UNKNOWN_JOB}"),
            ("DELETE", f"/v1/jobs/{UNKNOWN_JOB}"),
            ("POST", f"/v1/jobs/{UNKNOWN_JOB}/callbacks/redeliver"),
            ("GET", f"/diffusion/v1/result?request_id={UNKNOWN_JOB}"),
        ):
            answer = await client.request(method, path)
            assert_refused(answer, 404, "not_found", "There is no such job.")

    async def test_an_unknown_endpoint(self, client: httpx.AsyncClient) -> None:
        answer = await submit(client, endpoint="nowhere")
        assert_refused(answer, 404, "not_found", "There is no such endpoint.")

    async def test_a_full_queue(self, edge: Edge, client: httpx.AsyncClient) -> None:
        await edge.services.endpoints.put(Endpoint(id="closed", max_queued=0))
        answer = await submit(client, endpoint="closed")
        message = "The queue of endpoint closed is full."
        assert_refused(answer, 429, "queue_full", message, headers={"retry-after": "5"})

    async def test_a_name_server_that_is_away(self, edge: Edge) -> None:
        async def resolve(host: str) -> Sequence[str]:
            raise socket.gaierror(socket.EAI_AGAIN, "away")

        services = replace(edge.services, resolve=resolve)
        app = create_api(Replica(services, ask_metrics=edge.ask_metrics))
        replica = replace(edge, app=app)
        async with await replica.client() as client:
            answer = await submit(client, callback_url="https://hooks.example.com/")
        message = (
            "The name server did not say where the callback's host hooks.example.com is. Try again."
        )
        assert_refused(answer, 503, "unavailable", message, headers={"retry-after": "2"})

    async def test_an_idempotency_key_of_another_request(self, client: httpx.AsyncClient) -> None:
        accepted = await submit(client, "order 1")
        answer = await submit(client, "order 1", alone="true")
        message = "This Idempotency-Key was used for another request."
        assert_refused(answer, 409, "idempotency_conflict", message)
        await client.delete(f"/v1/jobs/{accepted.json()['request_id']}")
        answer = await submit(client, "order 1")
        message = "The job of this Idempotency-Key or id was erased."
        assert_refused(answer, 409, "idempotency_conflict", message)


class TestAdministration:
    @pytest.fixture
    async def key_id(self, edge: Edge) -> str:
        return (await edge.key()).split("_")[1]

    async def rotate(self, edge: Edge, key_id: str) -> httpx.Response:
        async with await edge.client("root", scopes=[Scope.ADMIN]) as admin:
            return await admin.post(f"/v1/keys/{key_id}/rotate")

    async def test_an_unknown_key(self, edge: Edge) -> None:
        answer = await self.rotate(edge, UNKNOWN_KEY)
        assert_refused(answer, 404, "not_found", "There is no such key.")

    async def test_a_key_that_was_rotated(self, edge: Edge, key_id: str) -> None:
        new_id = (await self.rotate(edge, key_id)).json()["id"]
        answer = await self.rotate(edge, key_id)
        message = f"The key was rotated already; its successor is {new_id}."
        assert_refused(answer, 409, "key_not_rotatable", message)

    async def test_a_key_that_has_ended(self, edge: Edge, key_id: str) -> None:
        await edge.services.keys.revoke(key_id, utc_now())
        answer = await self.rotate(edge, key_id)
        message = "The key was revoked or has expired. Create a new one."
        assert_refused(answer, 409, "key_not_rotatable", message)

    async def test_a_key_that_changes_meanwhile(
        self, edge: Edge, key_id: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def lose(*_: object, **__: object) -> bool:
            return False

        monkeypatch.setattr(edge.services.keys, "rotate", lose)
        answer = await self.rotate(edge, key_id)
        message = "The key was changed at the same time. Try again."
        assert_refused(answer, 409, "key_not_rotatable", message)


@pytest.mark.parametrize(
    ("name", "type", "message"),
    [
        ("..", "invalid_upload", "The file has no name."),
        ("a" * 256, "invalid_upload", "The file's name is longer than 255 characters."),
        ("a\x85.png", "invalid_upload", "The file's name has control characters."),
        ("a.png", "invalid_image", "The file is no PNG, JPEG or WebP image."),
        ("a.latent", "invalid_latent", "The file is no safetensors file, or is damaged."),
    ],
)
async def test_an_upload(client: httpx.AsyncClient, name: str, type: str, message: str) -> None:
    answer = await client.post("/v1/uploads", files={"image": (name, b"no picture")})
    assert_refused(answer, 400, type, message)
