"""The query member `callback_events`."""

from __future__ import annotations

import httpx
import pytest

from tests.support.edge import Edge
from tests.support.generate_bodies import GENERATE_PATHS, body_for

URL = "http://127.0.0.1:9000/hook"
PATH = "/diffusion/v1/generate"


@pytest.mark.parametrize("path", GENERATE_PATHS)
@pytest.mark.parametrize(
    ("asked", "recorded"),
    [
        (None, None),
        ("completed", None),
        ("started,image,completed", ("started", "image")),
        ("completed,image,started,image", ("started", "image")),
        ("completed,image", ("image",)),
    ],
)
async def test_what_is_asked_for_is_recorded_in_one_order(
    edge: Edge,
    client: httpx.AsyncClient,
    path: str,
    asked: str | None,
    recorded: tuple[str, ...] | None,
) -> None:
    query = {"callback_url": URL} | ({} if asked is None else {"callback_events": asked})
    answer = await client.post(path, json=body_for(GENERATE_PATHS[path]), params=query)
    assert answer.status_code == 202, answer.text
    job = await edge.job(answer.json()["request_id"])
    assert job.submitted.callback_events == recorded


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("startd,completed", "'startd' is not told of; did you mean started?"),
        ("started,images,completed", "'images' is not told of; did you mean image?"),
        ("Completed", "'Completed' is not told of; did you mean completed?"),
        ("started, completed", "' completed' is not told of; did you mean completed?"),
        ("", "'' is not told of; there are started, image, completed"),
        ("started,,completed", "'' is not told of; there are started, image, completed"),
        ("*" * 5000, f"{'*' * 40!r} is not told of; there are started, image, completed"),
        ("started,image", "the end is always told: add completed"),
    ],
)
async def test_what_cannot_be_told_is_refused_and_the_nearest_named(
    client: httpx.AsyncClient, asked: str, message: str
) -> None:
    query = {"callback_url": URL, "callback_events": asked}
    answer = await client.post(PATH, json=body_for(GENERATE_PATHS[PATH]), params=query)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request")
    [field] = answer.json()["error"]["extra_info"]["fields"]
    assert (field["field"], field["message"]) == ("callback_events", message)


async def test_who_has_no_address_is_told_nothing(client: httpx.AsyncClient) -> None:
    query = {"callback_events": "started,completed"}
    answer = await client.post(PATH, json=body_for(GENERATE_PATHS[PATH]), params=query)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request")
    assert error["extra_info"]["parameter"] == "callback_url"


async def test_a_repeat_that_asks_for_something_else_is_another_request(
    client: httpx.AsyncClient,
) -> None:
    async def post(events: str) -> int:
        query = {"callback_url": URL, "callback_events": events}
        headers = {"Idempotency-Key": "one"}
        body = body_for(GENERATE_PATHS[PATH])
        return (await client.post(PATH, json=body, params=query, headers=headers)).status_code

    assert await post("started,completed") == 202
    assert await post("completed,started") == 202
    assert await post("image,completed") == 409
    assert await post("completed") == 409
