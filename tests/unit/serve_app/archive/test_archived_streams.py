"""Streams of jobs whose events have left the log."""

from __future__ import annotations

import httpx

from actors.upkeep.archiver import Archiver
from tests.support.edge import Edge
from tests.support.generate_bodies import diffusion_body
from tests.support.live.stream import watching
from tests.unit.serve_app.archive.conftest import DIFFUSION, archived_job

RUN = ["submitted", "started", "image_stored", "completed"]


async def test_an_archived_job_is_told_as_before(
    edge: Edge, client: httpx.AsyncClient, archiver: Archiver
) -> None:
    job_id = await archived_job(edge, client, archiver)
    async with watching(edge.app, f"/v1/jobs/{job_id}/events", await edge.key()) as stream:
        received = await stream.end()
    assert [each.event for each in received] == RUN
    assert [each.id for each in received] == ["1", "2", "3", "4"]
    assert stream.is_whole


async def test_a_cursor_finds_what_has_left_the_log_in_its_place(
    edge: Edge, client: httpx.AsyncClient, archiver: Archiver
) -> None:
    answer = await client.post(DIFFUSION, json=diffusion_body())
    first = str(answer.json()["request_id"])
    second = await archived_job(edge, client, archiver)
    await edge.start(first)
    async with watching(edge.app, "/v1/events?cursor=0", await edge.key()) as stream:
        received = [await stream.event() for _ in range(6)]
    assert [each.id for each in received] == ["1", "2", "3", "4", "5", "6"]
    jobs = [each.data["subject"] for each in received]
    assert jobs == [first, second, second, second, second, first]


async def test_what_has_left_the_log_is_another_owners_no_more_than_before(
    edge: Edge, client: httpx.AsyncClient, archiver: Archiver
) -> None:
    await archived_job(edge, client, archiver)
    async with await edge.client("bob") as bob:
        answer = await bob.post(DIFFUSION, json=diffusion_body())
        async with watching(edge.app, "/v1/events?cursor=0", await edge.key("bob")) as stream:
            received = await stream.event()
    assert received.data["subject"] == answer.json()["request_id"]
