"""The whole answer to every request that is refused: status, body and headers."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from engine.errors import CheckpointUnavailable, EngineError
from events.errors import ServiceError
from events.store.records import Scope
from serve_app.access.api_keys import mint
from serve_app.error_responses import ANSWERS
from tests.support.edge import Client, Edge, lasting_headers
from tests.support.generate_bodies import diffusion_body

PAST = datetime(2020, 1, 1, tzinfo=UTC)
GENERATE = "/diffusion/v1/generate"
UNKNOWN_JOB = "0199a1b2-0000-7000-8000-000000000000"


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


async def submit(client: Client, key: str | None = None, **query: str) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return await client.post(GENERATE, json=diffusion_body(), params=query, headers=headers)


class TestKeys:
    async def test_a_request_without_a_key(self, anyone: Client) -> None:
        answer = await anyone.get("/v1/jobs")
        message = "Send an API key as Authorization: Bearer <API_KEY>."
        headers = {"www-authenticate": "Bearer"}
        assert_refused(answer, 401, "unauthorized", message, headers=headers)

    async def test_a_key_that_opens_nothing(self, edge: Edge) -> None:
        stranger, _ = mint("eve", "made up", [Scope.READ], created_at=PAST)
        expired = await edge.key(expires_at=PAST)
        headers = {"www-authenticate": 'Bearer error="invalid_token"'}
        for text, message in (
            ("nonsense", "The text is not an API key. Check it for typing errors."),
            (stranger, "There is no such API key."),
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
        async with await edge.client(endpoints=("fast",)) as client:
            answer = await submit(client)
        message = "The API key may not use this endpoint."
        assert_refused(answer, 403, "forbidden", message, extra_info={"parameter": "endpoint"})
        message = "The API key may not send callbacks to this host."
        extra_info = {"parameter": "callback_url"}
        url = "https://hooks.example.com/"
        async with await edge.client(callback_hosts=("other.example",)) as client:
            answer = await submit(client, callback_url=url)
            assert_refused(answer, 403, "forbidden", message, extra_info=extra_info)
            answer = await client.post("/v1/callbacks/test", params={"callback_url": url})
            assert_refused(answer, 403, "forbidden", message, extra_info=extra_info)

    @pytest.mark.edge(owner_rate_per_s=0.5, owner_burst=2)
    async def test_a_key_or_an_owner_that_asks_too_often(self, edge: Edge) -> None:
        async with await edge.client("bob", rate_per_s=0.5, burst=1) as one:
            await one.get("/v1/jobs")
            answer = await one.get("/v1/jobs")
        message = "The key may send 0.5 requests a second."
        assert_refused(answer, 429, "rate_exceeded", message, headers={"retry-after": "2"})
        async with await edge.client() as one, await edge.client() as two:
            await one.get("/v1/jobs")
            await two.get("/v1/jobs")
            answer = await two.get("/v1/jobs")
        message = "All keys of this owner together may send 0.5 requests a second."
        assert_refused(answer, 429, "rate_exceeded", message, headers={"retry-after": "2"})

    @pytest.mark.edge(owner_max_open_jobs=2)
    async def test_a_key_or_an_owner_with_too_many_open_jobs(self, edge: Edge) -> None:
        headers = {"retry-after": "5"}
        async with await edge.client(max_open_jobs=1) as one, await edge.client() as two:
            assert (await submit(one)).status_code == 202
            message = "The key may have 1 jobs that wait or run."
            answer = await submit(one)
            assert_refused(answer, 429, "too_many_open_jobs", message, headers=headers)
            assert (await submit(two)).status_code == 202
            message = "All keys of this owner together may have 2 jobs that wait or run."
            answer = await submit(two)
            assert_refused(answer, 429, "too_many_open_jobs", message, headers=headers)


class TestJobs:
    async def test_an_unknown_job(self, client: Client) -> None:
        for method, path in (
            ("GET", f"/v1/jobs/{UNKNOWN_JOB}"),
            ("DELETE", f"/v1/jobs/{UNKNOWN_JOB}"),
            ("POST", f"/v1/jobs/{UNKNOWN_JOB}/callbacks/redeliver"),
            ("GET", f"/diffusion/v1/result?request_id={UNKNOWN_JOB}"),
        ):
            answer = await client.request(method, path)
            assert_refused(answer, 404, "not_found", "There is no such job.")

    async def test_an_unknown_endpoint(self, client: Client) -> None:
        answer = await submit(client, endpoint="nowhere")
        assert_refused(answer, 404, "not_found", "There is no such endpoint.")

    async def test_a_name_server_that_is_away(self, edge: Edge) -> None:
        async def resolve(host: str) -> Sequence[str]:
            raise socket.gaierror(socket.EAI_AGAIN, "away")

        app = edge.services.with_resolver(resolve).app()
        replica = replace(edge, app=app)
        async with await replica.client() as client:
            answer = await submit(client, callback_url="https://hooks.example.com/")
        message = (
            "The name server did not resolve the callback's host hooks.example.com. Try again."
        )
        assert_refused(answer, 503, "unavailable", message, headers={"retry-after": "2"})

    async def test_an_idempotency_key_of_another_request(self, client: Client) -> None:
        accepted = await submit(client, "order 1")
        answer = await submit(client, "order 1", alone="true")
        message = "This Idempotency-Key was used for another request."
        assert_refused(answer, 409, "idempotency_conflict", message)
        await client.delete(f"/v1/jobs/{accepted.json()['request_id']}")
        answer = await submit(client, "order 1")
        message = "The job of this Idempotency-Key or id was erased."
        assert_refused(answer, 409, "idempotency_conflict", message)


@pytest.mark.parametrize(
    ("name", "type", "message"),
    [
        ("..", "invalid_upload", "The file has no name."),
        (
            "cat.png [temp]",
            "invalid_upload",
            (
                "A name must not end with [input], [output] or [temp], because a graph means a "
                "folder by them."
            ),
        ),
        ("a" * 256, "invalid_upload", "The file's name is longer than 255 characters."),
        (
            "a\x85.png",
            "invalid_upload",
            (
                "The file's name has invisible characters, such as control characters or marks of "
                "the direction of text. Choose another name."
            ),
        ),
        (
            "a.png",
            "invalid_image",
            (
                "The file is neither a PNG, JPEG or WebP image nor a video or audio file "
                "(mp4, mov, m4a, webm, mkv, wav, flac, ogg, opus, mp3)."
            ),
        ),
        ("a.latent", "invalid_latent", "The file is not a safetensors file, or it is damaged."),
    ],
)
async def test_an_upload(client: Client, name: str, type: str, message: str) -> None:
    answer = await client.post("/v1/uploads", files={"image": (name, b"no picture")})
    assert_refused(answer, 400, type, message)


def leaves(error: type[Exception]) -> list[type[Exception]]:
    below = error.__subclasses__()
    return [leaf for each in below for leaf in leaves(each)] if below else [error]


def test_every_error_of_ours_is_in_the_table() -> None:
    assert {*leaves(ServiceError)} - ANSWERS.keys() == set()


@pytest.mark.parametrize("kind", leaves(EngineError))
def test_every_error_of_the_engine_has_an_answer(kind: type[EngineError]) -> None:
    answered = next(each for each in kind.__mro__ if each in ANSWERS)
    if answered is EngineError:
        answer = ANSWERS[EngineError](kind.__new__(kind))
        is_model = kind is CheckpointUnavailable
        expected = (400, "checkpoint_unavailable") if is_model else (500, "internal")
        assert (answer.status, answer.type) == expected


async def test_an_unknown_path(client: Client) -> None:
    answer = await client.get("/nowhere")
    assert_refused(answer, 404, "not_found", "There is nothing at this path.")
