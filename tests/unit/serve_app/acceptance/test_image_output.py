"""The format of a job's images, as a request, its key and the settings have it, over HTTP."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from events.log import utc_now
from events.store.records import KeyLimits
from serve_app.access.api_keys import mint
from tests.support.edge import ALL_SCOPES, Edge, running_edge
from tests.support.failing_log import FailingLog
from tests.support.generate_bodies import diffusion_body, workflow_body

BODIES = {"diffusion": diffusion_body, "workflow": workflow_body}


async def submit(
    client: httpx.AsyncClient, flavour: str = "diffusion", **query: Any
) -> httpx.Response:
    return await client.post(f"/{flavour}/v1/generate", params=query, json=BODIES[flavour]())


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
    edge: Edge, client: httpx.AsyncClient, flavour: str, query: Any, expected: Any
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
    client: httpx.AsyncClient, query: Mapping[str, Any], field: str
) -> None:
    answer = await submit(client, **query)
    assert answer.status_code == 400
    error = answer.json()["error"]
    fields = [each["field"] for each in error["extra_info"].get("fields", [])]
    assert [*fields, error["extra_info"].get("parameter")][0] == field


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
    async with running_edge(tmp_path, log=log, **settings) as edge:
        limits = KeyLimits(**of_key)
        text, key = mint("alice", "test", ALL_SCOPES, created_at=utc_now(), limits=limits)
        await edge.services.keys.add(key)
        async with edge.client_with(text) as client:
            assert await recorded(edge, await submit(client, **query)) == expected
