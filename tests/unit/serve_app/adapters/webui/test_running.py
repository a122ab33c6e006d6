"""What runs, as the WebUI's clients ask for it, and its end."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import httpx

from events.wire.progress import JobProgress
from tests.support.edge import Edge
from tests.support.generate_bodies import diffusion_body

IDLE = {"progress": 0.0, "job_count": 0, "job": "", "current_image": None}


async def submitted(client: httpx.AsyncClient, **changed: Any) -> str:
    answer = await client.post("/diffusion/v1/generate", json=diffusion_body() | changed)
    job_id: str = answer.json()["request_id"]
    return job_id


async def told(client: httpx.AsyncClient, query: str = "") -> dict[str, Any]:
    answer = await client.get(f"/sdapi/v1/progress{query}")
    assert answer.status_code == 200
    found = answer.json()
    return {name: found.get(name, found["state"].get(name)) for name in IDLE}


def hear(edge: Edge, job_id: str, progress: JobProgress) -> None:
    edge.progress[job_id] = replace(progress, preview=None)
    for listener in edge.services.progress.listeners:
        listener(job_id, progress)


async def test_progress_is_that_of_the_job_that_runs(edge: Edge, client: httpx.AsyncClient) -> None:
    assert await told(client) == IDLE
    job_id = await submitted(client)
    await submitted(client)
    await edge.start(job_id)
    await edge.project()
    hear(edge, job_id, JobProgress(5, 20, preview=b"jpeg"))
    found = await told(client)
    assert (found["progress"], found["job_count"], found["job"]) == (0.25, 2, job_id)
    assert base64.b64decode(found["current_image"]) == b"jpeg"
    assert (await told(client, "?skip_current_image=true"))["current_image"] is None
    await edge.store_image(job_id)
    await edge.complete(job_id)
    await edge.project()
    assert (await told(client))["job_count"] == 1


async def test_interrupt_ends_what_runs_and_leaves_what_waits(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    running, waiting = await submitted(client), await submitted(client)
    await edge.start(running)
    await edge.project()
    assert (await client.post("/sdapi/v1/interrupt")).json() == {}
    assert (await edge.job(running)).cancel_requested
    assert (await edge.job(waiting)).end is None


async def test_where_nothing_runs_the_oldest_that_waits_is_ended(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    assert (await client.post("/sdapi/v1/interrupt")).status_code == 200
    first, second = await submitted(client), await submitted(client)
    await edge.project()
    await client.post("/sdapi/v1/interrupt")
    assert (await edge.job(first)).end is not None
    assert (await edge.job(second)).end is None


async def test_a_job_of_several_images_is_not_skipped_in_part(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    for images, status in ((2, 400), (1, 200)):
        job_id = await submitted(client, batch_size=images)
        await edge.start(job_id)
        await edge.project()
        assert (await client.post("/sdapi/v1/skip")).status_code == status
        assert (await edge.job(job_id)).cancel_requested == (images == 1)
        await client.post("/sdapi/v1/interrupt")
        await edge.store_image(job_id)
        await edge.project()
        await client.delete(f"/v1/jobs/{job_id}")
        await edge.project()


async def test_nobody_sees_or_ends_what_another_key_runs(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    job_id = await submitted(client)
    await edge.start(job_id)
    await edge.project()
    hear(edge, job_id, JobProgress(5, 20, preview=b"jpeg"))
    for owner in ("bob", "alice"):
        async with await edge.client(owner) as other:
            assert await told(other) == IDLE
            await other.post("/sdapi/v1/interrupt")
            await other.post("/sdapi/v1/skip")
    assert not (await edge.job(job_id)).cancel_requested
