"""Members of the query: `callback_events`, `image_format` and `image_quality`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.edge import Client, Edge, refusal, running_edge
from tests.support.failing_log import FailingLog
from tests.support.generate_bodies import diffusion_body, workflow_body

URL = "http://127.0.0.1:9000/hook"
UNKNOWN_EVENT = "is not a callback event; the events are started, image, completed"
BODIES = {"diffusion": diffusion_body, "workflow": workflow_body}


async def submit(
    client: Client, flavour: str = "diffusion", *, key: str = "", **query: Any
) -> httpx.Response:
    path, headers = f"/{flavour}/v1/generate", {"Idempotency-Key": key} if key else {}
    return await client.post(path, params=query, json=BODIES[flavour](), headers=headers)


@pytest.mark.parametrize("flavour", BODIES)
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
    edge: Edge, client: Client, flavour: str, asked: str | None, recorded: tuple[str, ...] | None
) -> None:
    query = {} if asked is None else {"callback_events": asked}
    answer = await submit(client, flavour, callback_url=URL, **query)
    assert answer.status_code == 202, answer.text
    assert (await edge.job(answer.json()["request_id"])).submitted.callback_events == recorded


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("startd,completed", "'startd' is not a callback event; did you mean started?"),
        ("started,images,completed", "'images' is not a callback event; did you mean image?"),
        ("Completed", "'Completed' is not a callback event; did you mean completed?"),
        ("started, completed", "' completed' is not a callback event; did you mean completed?"),
        ("", f"'' {UNKNOWN_EVENT}"),
        ("started,,completed", f"'' {UNKNOWN_EVENT}"),
        ("*" * 5000, f"{'*' * 40!r} {UNKNOWN_EVENT}"),
        ("started,image", "the events must include completed"),
    ],
)
async def test_what_cannot_be_told_is_refused_and_the_nearest_named(
    client: Client, asked: str, message: str
) -> None:
    answer = await submit(client, callback_url=URL, callback_events=asked)
    assert refusal(answer) == (400, "invalid_request")
    [field] = answer.json()["error"]["extra_info"]["fields"]
    assert (field["field"], field["message"]) == ("callback_events", message)


async def test_who_has_no_address_is_told_nothing(client: Client) -> None:
    answer = await submit(client, callback_events="started,completed")
    assert refusal(answer) == (400, "invalid_request")
    assert answer.json()["error"]["extra_info"]["parameter"] == "callback_url"


async def test_a_repeat_that_asks_for_something_else_is_another_request(client: Client) -> None:
    for events, status in (
        ("started,completed", 202),
        ("completed,started", 202),
        ("image,completed", 409),
        ("completed", 409),
    ):
        answer = await submit(client, key="one", callback_url=URL, callback_events=events)
        assert answer.status_code == status, events


async def recorded(edge: Edge, answer: httpx.Response) -> tuple[str | None, int | None]:
    assert answer.status_code == 202, answer.text
    submitted = (await edge.job(answer.json()["request_id"])).submitted
    return submitted.image_format, submitted.image_quality


@pytest.mark.parametrize("flavour", BODIES)
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, (None, None)),
        ({"image_format": "png"}, (None, None)),
        ({"image_format": "webp"}, ("webp", 90)),
        ({"image_format": "webp", "image_quality": 100}, ("webp", 100)),
        ({"image_format": "jpeg", "image_quality": 1}, ("jpeg", 1)),
    ],
)
async def test_a_job_records_what_was_asked_for(
    edge: Edge, client: Client, flavour: str, query: Any, expected: Any
) -> None:
    assert await recorded(edge, await submit(client, flavour, **query)) == expected


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"image_format": "gif"}, "image_format"),
        ({"image_format": "WEBP"}, "image_format"),
        ({"image_format": "webp", "image_quality": 0}, "image_quality"),
        ({"image_format": "webp", "image_quality": 101}, "image_quality"),
        ({"image_format": "webp", "image_quality": "high"}, "image_quality"),
        ({"image_format": "png", "image_quality": 90}, "image_quality"),
        ({"image_quality": 90}, "image_quality"),
    ],
)
async def test_what_makes_no_sense_is_named(
    client: Client, query: Mapping[str, Any], field: str
) -> None:
    answer = await submit(client, **query)
    assert answer.status_code == 400
    info = answer.json()["error"]["extra_info"]
    assert field in (info.get("parameter"), *(each["field"] for each in info.get("fields", ())))


@pytest.mark.parametrize(
    ("of_key", "query", "expected"),
    [
        ({}, {}, ("jpeg", 70)),
        ({"image_quality": 95}, {}, ("jpeg", 95)),
        ({"image_format": "webp"}, {}, ("webp", 70)),
        ({"image_format": "webp"}, {"image_quality": 5}, ("webp", 5)),
        ({"image_format": "webp"}, {"image_format": "png"}, (None, None)),
        ({"image_format": "png"}, {}, (None, None)),
    ],
)
async def test_what_a_request_leaves_out_is_as_its_key_has_it_and_then_the_settings(
    tmp_path: Path, log: FailingLog, of_key: Any, query: Any, expected: Any
) -> None:
    settings: dict[str, Any] = {"key_image_format": "jpeg", "key_image_quality": 70}
    async with (
        running_edge(tmp_path, log=log, **settings) as edge,
        await edge.client(**of_key) as client,
    ):
        assert await recorded(edge, await submit(client, **query)) == expected
