"""A repeated request with the same Idempotency-Key finds its job, by every protocol."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import pytest

from events.ids import new_id
from tests.support.edge import Client, Edge
from tests.support.generate_bodies import diffusion_body, workflow_body
from tests.support.live.stream import DEADLINE_S, watching
from tests.support.polling import eventually
from tests.support.uploads import png
from tests.unit.serve_app.protocols.conftest import Answered

TEXT = {"prompt": "a cat", "steps": 4, "width": 64, "height": 64}
PICTURE = base64.b64encode(png()).decode()


def _form(prompt: str, colour: str = "red") -> dict[str, Any]:
    """A form, for which httpx chooses another boundary every time."""
    return {"files": {"image": ("a.png", png(colour, (64, 32)))}, "data": {"prompt": prompt}}


def _workflow(seed: int) -> dict[str, Any]:
    return {"workflow": workflow_body(seed=seed)["prompt"]}


@dataclass(frozen=True, slots=True)
class Door:
    path: str
    body: dict[str, Any]
    """The arguments of the request. Seeds are random wherever a request may ask for that."""
    other: dict[str, Any]
    id_of: Callable[[Any], str]
    conflict: tuple[int, str]
    malformed: int = 400
    waits: bool = True

    async def post(self, client: Client, key: str, body: dict[str, Any]) -> httpx.Response:
        return await client.post(self.path, headers={"Idempotency-Key": key}, **body)


def _id_in_info(answer: Any) -> str:
    return str(json.loads(answer["info"])["request_id"])


_id = partial(lambda name, answer: str(answer[name]), "request_id")
DOORS = [
    Door(
        "/diffusion/v1/generate",
        {"json": diffusion_body(seed=-1)},
        {"json": diffusion_body(seed=1)},
        _id,
        (409, "idempotency_conflict"),
        waits=False,
    ),
    Door(
        "/prompt",
        {"json": workflow_body(seed=1)},
        {"json": workflow_body(seed=2)},
        lambda answer: str(answer["prompt_id"]),
        (409, "idempotency_conflict"),
        waits=False,
    ),
    Door(
        "/api/v2/jobs",
        {"json": _workflow(1)},
        {"json": _workflow(2)},
        lambda answer: str(answer["id"]),
        (422, "idempotency_key_reuse"),
        malformed=422,
        waits=False,
    ),
    Door(
        "/v1/images/generations",
        {"json": {"prompt": "a cat"}},
        {"json": {"prompt": "a dog"}},
        _id,
        (409, "idempotency_conflict"),
    ),
    Door("/v1/images/edits", _form("a cat"), _form("a dog"), _id, (409, "idempotency_conflict")),
    Door(
        "/v1/images/variations",
        _form(""),
        _form("", colour="blue"),
        _id,
        (409, "idempotency_conflict"),
    ),
    Door(
        "/sdapi/v1/txt2img",
        {"json": TEXT},
        {"json": TEXT | {"prompt": "a dog"}},
        _id_in_info,
        (409, "idempotency_conflict"),
        malformed=422,
    ),
    Door(
        "/sdapi/v1/img2img",
        {"json": TEXT | {"init_images": [PICTURE]}},
        {"json": TEXT | {"init_images": [PICTURE], "mask": PICTURE}},
        _id_in_info,
        (409, "idempotency_conflict"),
        malformed=422,
    ),
]


def refused(answer: httpx.Response) -> tuple[int, str]:
    """Return the status and the type of an error in any of the formats."""
    error = answer.json()["error"]
    if isinstance(error, dict):
        error = error.get("type") if "extra_info" in error else error["code"]
    return answer.status_code, error


@pytest.fixture(params=DOORS, ids=lambda door: door.path)
def door(request: pytest.FixtureRequest) -> Door:
    found: Door = request.param
    return found


async def test_a_repeat_gets_the_same_job_and_another_request_a_conflict(
    edge: Edge, client: Client, bob: Client, admin: Client, answered: Answered, door: Door
) -> None:
    first = await answered(door.post(client, "once", door.body), edge.run)
    assert (await answered(door.post(bob, "once", door.other), edge.run)).is_success
    # Now any new request would be refused.
    assert (await admin.patch("/v1/endpoints/default", json={"draining": True})).is_success
    again = await door.post(client, "once", door.body)
    assert (again.status_code, door.id_of(again.json())) == (
        first.status_code,
        door.id_of(first.json()),
    )
    assert first.is_success
    assert refused(await door.post(client, "once", door.other)) == door.conflict
    assert len(edge.log.job_ids()) == 2
    assert (await door.post(client, "new", door.other)).status_code == 503


async def test_a_malformed_key_is_refused(edge: Edge, client: Client, door: Door) -> None:
    for key in ("", "a" * 256, "tab\there"):
        answer = await door.post(client, key, door.body)
        assert answer.status_code == door.malformed, answer.text
        assert "Idempotency-Key" in answer.text
    assert not edge.log.job_ids()


@pytest.mark.parametrize("door", [each for each in DOORS if each.waits], ids=lambda door: door.path)
async def test_the_job_of_a_broken_call_with_a_key_is_found_while_it_runs(
    edge: Edge, client: Client, answered: Answered, door: Door
) -> None:
    broken = asyncio.create_task(door.post(client, "once", door.body))
    [job_id] = await eventually(edge.log.job_ids)
    broken.cancel()
    await asyncio.wait([broken])
    again = asyncio.create_task(door.post(client, "once", door.body))
    await edge.run(job_id)
    assert door.id_of((await again).json()) == job_id
    assert edge.log.job_ids() == [job_id]


async def test_options_that_were_stored_since_then_do_not_make_another_request(
    edge: Edge, client: Client, answered: Answered
) -> None:
    door = next(each for each in DOORS if each.path == "/sdapi/v1/txt2img")
    first = await answered(door.post(client, "once", door.body), edge.run)
    options = {"CLIP_stop_at_last_layers": 2}
    assert (await client.post("/sdapi/v1/options", json=options)).is_success
    again = await door.post(client, "once", door.body)
    assert door.id_of(again.json()) == door.id_of(first.json())


async def test_a_prompt_has_either_a_key_or_an_id(edge: Edge, client: Client) -> None:
    body = {"json": workflow_body() | {"prompt_id": new_id()}}
    door = next(each for each in DOORS if each.path == "/prompt")
    assert refused(await door.post(client, "once", body)) == (400, "invalid_request")
    assert not edge.log.job_ids()


async def test_programs_for_openai_do_not_repeat_a_request_with_a_conflict(
    edge: Edge, client: Client, answered: Answered
) -> None:
    door = next(each for each in DOORS if each.path == "/v1/images/generations")
    await answered(door.post(client, "once", door.body), edge.run)
    answer = await door.post(client, "once", door.other)
    assert answer.headers["x-should-retry"] == "false"


async def test_a_stream_names_its_job_before_the_job_ends(edge: Edge, client: Client) -> None:
    sent = json.dumps({"prompt": "a cat", "stream": True}).encode()
    path = "/v1/images/generations"
    async with watching(edge.app, path, await edge.key(), body=sent) as stream:
        [job_id] = await eventually(edge.log.job_ids)
        await asyncio.wait_for(stream.began.wait(), DEADLINE_S)
        assert stream.headers["darkroom-job-id"] == job_id
