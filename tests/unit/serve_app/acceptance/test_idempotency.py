import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from events.ids import new_id
from events.store.records import Endpoint
from tests.support.edge import Client, Edge, refusal
from tests.support.events import LATER
from tests.support.failing_log import FailingLog
from tests.support.generate_bodies import diffusion_body, workflow_body

DIFFUSION = "/diffusion/v1/generate"
KEY = {"Idempotency-Key": "order 1"}
BODY = diffusion_body()


async def submit(client: Client, key: str | bytes = "order 1", **changes: Any) -> httpx.Response:
    headers = {"Idempotency-Key": key}
    return await client.post(DIFFUSION, json=BODY | changes, headers=headers)


async def test_a_repeat_answers_the_job_as_it_is_now(edge: Edge, client: Client) -> None:
    first = await submit(client)
    await edge.run(first.json()["request_id"])
    again = await submit(client)
    assert again.status_code == 202
    assert again.json()["status"] == 1


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ("", diffusion_body(seed=1)),
        ("?endpoint=other", BODY),
        ("?callback_url=http://127.0.0.1:9000/", BODY),
        ("?alone=true", BODY),
        ("?preview=true", BODY),
        ("?image_format=webp", BODY),
        ("", dict(reversed(BODY.items()))),
    ],
    ids=["body", "endpoint", "callback", "alone", "preview", "format", "order of the members"],
)
async def test_another_request_is_a_conflict(
    edge: Edge, client: Client, query: str, body: dict[str, Any]
) -> None:
    await edge.services.endpoints.put(Endpoint(id="other"))
    assert (await submit(client)).status_code == 202
    answer = await client.post(f"{DIFFUSION}{query}", json=body, headers=KEY)
    assert refusal(answer) == (409, "idempotency_conflict")


async def test_another_flavour_is_a_conflict(client: Client) -> None:
    assert (await submit(client)).status_code == 202
    answer = await client.post("/workflow/v1/generate", json=workflow_body(), headers=KEY)
    assert refusal(answer) == (409, "idempotency_conflict")


async def test_both_paths_of_a_flavour_are_the_same_request(client: Client) -> None:
    first = await submit(client)
    again = await client.post("/api/v1/diffusion/generate", json=BODY, headers=KEY)
    assert again.json() == first.json()


async def test_another_api_key_of_the_same_caller_is_the_same_job_and_another_caller_is_not(
    edge: Edge, client: Client, bob: Client
) -> None:
    first = await submit(client)
    async with await edge.client("alice") as second_key:
        assert (await submit(second_key)).json() == first.json()
    other = await submit(bob)
    assert other.status_code == 202
    assert other.json()["request_id"] != first.json()["request_id"]


async def test_a_key_in_another_case_is_another_key(client: Client) -> None:
    ids = set()
    for key in ("order", "Order", "ORDER"):
        ids.add((await submit(client, key)).json()["request_id"])
    assert len(ids) == 3


@pytest.mark.parametrize("key", ["", "a" * 256, "tab\there", "ä"])
async def test_a_key_must_be_printable_ascii(client: Client, key: str) -> None:
    answer = await submit(client, key.encode())
    assert answer.status_code == 400
    assert answer.json()["error"]["extra_info"]["fields"][0]["field"] == "Idempotency-Key"


async def test_the_longest_key_is_taken(client: Client) -> None:
    assert (await submit(client, "~" * 255)).status_code == 202


async def test_a_repeat_is_found_where_the_request_would_be_refused_by_now(
    edge: Edge, client: Client, tmp_path: Path
) -> None:
    await edge.services.endpoints.put(Endpoint(id="default", max_queued=1))
    first = await submit(client)
    await edge.queue.add("default", 0, new_id(), deadline=LATER)
    assert (await client.post(DIFFUSION, json=BODY)).status_code == 429
    edge.health.full = 0.99
    for model in tmp_path.rglob("*.safetensors"):
        model.unlink()
    again = await submit(client)
    assert again.status_code == 202
    assert again.json() == first.json()


async def test_a_refused_request_does_not_use_up_its_key(client: Client) -> None:
    assert (await submit(client, steps=0)).status_code == 400
    assert (await submit(client)).status_code == 202


async def test_racing_repeats_are_one_job(edge: Edge, client: Client) -> None:
    posts = (submit(client) for _ in range(8))
    answers = await asyncio.gather(*posts)
    assert {answer.status_code for answer in answers} == {202}
    [job_id] = {answer.json()["request_id"] for answer in answers}
    assert (await edge.job(job_id)).version == 1


async def test_an_unknown_outcome_is_found_by_its_key(
    edge: Edge, client: Client, log: FailingLog
) -> None:
    log.lose_answers()
    lost = await submit(client)
    assert refusal(lost) == (503, "outcome_unknown")
    log.recover()
    again = await submit(client)
    assert again.status_code == 202
    job = await edge.job(again.json()["request_id"])
    assert (job.version, job.end) == (1, None)
