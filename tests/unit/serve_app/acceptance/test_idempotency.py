import asyncio
from pathlib import Path

import pytest

from events.ids import new_id
from events.store.records import Endpoint
from tests.support.edge import Client, Edge, refusal
from tests.support.events import LATER
from tests.support.failing_log import FailingLog
from tests.support.generate_bodies import diffusion_body, workflow_body

DIFFUSION = "/diffusion/v1/generate"
KEY = {"Idempotency-Key": "order 1"}


async def test_a_repeat_answers_the_job_as_it_is_now(edge: Edge, client: Client) -> None:
    first = await client.post(DIFFUSION, json=diffusion_body(), headers=KEY)
    await edge.run(first.json()["request_id"])
    again = await client.post(DIFFUSION, json=diffusion_body(), headers=KEY)
    assert again.status_code == 202
    assert again.json()["status"] == 1


@pytest.mark.parametrize(
    "change",
    ["body", "endpoint", "callback_url", "alone", "preview", "format", "flavour", "spelling"],
)
async def test_another_request_is_a_conflict(edge: Edge, client: Client, change: str) -> None:
    await edge.services.endpoints.put(Endpoint(id="other"))
    body = diffusion_body()
    assert (await client.post(DIFFUSION, json=body, headers=KEY)).status_code == 202
    answer = await {
        "body": lambda: client.post(DIFFUSION, json=diffusion_body(seed=1), headers=KEY),
        "endpoint": lambda: client.post(f"{DIFFUSION}?endpoint=other", json=body, headers=KEY),
        "callback_url": lambda: client.post(
            f"{DIFFUSION}?callback_url=http://127.0.0.1:9000/", json=body, headers=KEY
        ),
        "alone": lambda: client.post(f"{DIFFUSION}?alone=true", json=body, headers=KEY),
        "preview": lambda: client.post(f"{DIFFUSION}?preview=true", json=body, headers=KEY),
        "format": lambda: client.post(f"{DIFFUSION}?image_format=webp", json=body, headers=KEY),
        "flavour": lambda: client.post("/workflow/v1/generate", json=workflow_body(), headers=KEY),
        # The same JSON in other bytes: told by the body as it was sent.
        "spelling": lambda: client.post(DIFFUSION, json=dict(reversed(body.items())), headers=KEY),
    }[change]()
    assert refusal(answer) == (409, "idempotency_conflict")


async def test_both_paths_of_a_flavour_are_the_same_request(client: Client) -> None:
    first = await client.post(DIFFUSION, json=diffusion_body(), headers=KEY)
    again = await client.post("/api/v1/diffusion/generate", json=diffusion_body(), headers=KEY)
    assert again.json() == first.json()


async def test_another_caller_with_the_same_key_is_another_job(client: Client, bob: Client) -> None:
    first = await client.post(DIFFUSION, json=diffusion_body(), headers=KEY)
    other = await bob.post(DIFFUSION, json=diffusion_body(), headers=KEY)
    assert other.status_code == 202
    assert other.json()["request_id"] != first.json()["request_id"]


async def test_another_api_key_of_the_same_caller_is_the_same_job(
    edge: Edge, client: Client
) -> None:
    first = await client.post(DIFFUSION, json=diffusion_body(), headers=KEY)
    async with await edge.client("alice") as second_key:
        again = await second_key.post(DIFFUSION, json=diffusion_body(), headers=KEY)
    assert again.json() == first.json()


async def test_a_key_in_another_case_is_another_key(client: Client) -> None:
    ids = set()
    for key in ("order", "Order", "ORDER"):
        headers = {"Idempotency-Key": key}
        answer = await client.post(DIFFUSION, json=diffusion_body(), headers=headers)
        ids.add(answer.json()["request_id"])
    assert len(ids) == 3


@pytest.mark.parametrize("key", ["", "a" * 256, "tab\there", "ä"])
async def test_a_key_must_be_printable_ascii(client: Client, key: str) -> None:
    headers = {"Idempotency-Key": key.encode()}
    answer = await client.post(DIFFUSION, json=diffusion_body(), headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["extra_info"]["fields"][0]["field"] == "Idempotency-Key"


async def test_the_longest_key_is_taken(client: Client) -> None:
    headers = {"Idempotency-Key": "~" * 255}
    assert (await client.post(DIFFUSION, json=diffusion_body(), headers=headers)).status_code == 202


async def test_a_repeat_is_found_where_the_request_would_be_refused_by_now(
    edge: Edge, client: Client, tmp_path: Path
) -> None:
    await edge.services.endpoints.put(Endpoint(id="default", max_queued=1))
    first = await client.post(DIFFUSION, json=diffusion_body(), headers=KEY)
    await edge.queue.add("default", 0, new_id(), deadline=LATER)
    assert (await client.post(DIFFUSION, json=diffusion_body())).status_code == 429
    edge.health.full = 0.99
    for model in tmp_path.rglob("*.safetensors"):
        model.unlink()
    again = await client.post(DIFFUSION, json=diffusion_body(), headers=KEY)
    assert again.status_code == 202
    assert again.json() == first.json()


async def test_a_refused_request_does_not_use_up_its_key(client: Client) -> None:
    refused = await client.post(DIFFUSION, json=diffusion_body(steps=0), headers=KEY)
    assert refused.status_code == 400
    assert (await client.post(DIFFUSION, json=diffusion_body(), headers=KEY)).status_code == 202


async def test_racing_repeats_are_one_job(edge: Edge, client: Client) -> None:
    posts = (client.post(DIFFUSION, json=diffusion_body(), headers=KEY) for _ in range(8))
    answers = await asyncio.gather(*posts)
    assert {answer.status_code for answer in answers} == {202}
    [job_id] = {answer.json()["request_id"] for answer in answers}
    assert (await edge.job(job_id)).version == 1


async def test_an_unknown_outcome_is_found_by_its_key(
    edge: Edge, client: Client, log: FailingLog
) -> None:
    log.lose_answers()
    lost = await client.post(DIFFUSION, json=diffusion_body(), headers=KEY)
    assert refusal(lost) == (503, "outcome_unknown")
    log.recover()
    again = await client.post(DIFFUSION, json=diffusion_body(), headers=KEY)
    assert again.status_code == 202
    job = await edge.job(again.json()["request_id"])
    assert (job.version, job.end) == (1, None)
