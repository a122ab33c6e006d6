"""Where a job stands that waits, in its result and on its stream."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from events.errors import LogUnavailable
from tests.support.edge import Client, Edge, submit
from tests.support.events import LATER
from tests.unit.serve_app.live.conftest import Watch


async def waiting(edge: Edge, client: Client, *, count: int) -> list[str]:
    """Jobs on the queue, in their order."""
    jobs = [await submit(client) for _ in range(count)]
    for job_id in jobs:
        lane = (await edge.job(job_id)).submitted.lane
        await edge.queue.add("default", lane, job_id, deadline=LATER)
    return jobs


async def result(client: Client, job_id: str) -> dict[str, Any]:
    answer = await client.get("/diffusion/v1/result", params={"request_id": job_id})
    assert answer.status_code == 200
    body: dict[str, Any] = answer.json()
    return body


@pytest.mark.parametrize(
    ("status", "position", "starts_in_s"),
    [
        (None, 3, None),
        ({"workers": [{"running": 1}], "rate_per_s": 0.5}, 2, 4.0),
        ({"workers": [{"running": 7}], "rate_per_s": None}, 1, None),
    ],
)
async def test_a_result_says_where_the_job_stands(
    edge: Edge, client: Client, status: Any, position: int, starts_in_s: float | None
) -> None:
    if status is not None:
        edge.statuses["default"] = status
    *_, last = await waiting(edge, client, count=3)
    body = await result(client, last)
    assert (body["queue_position"], body.get("starts_in_s")) == (position, starts_in_s)
    assert (await client.get(f"/v1/jobs/{last}")).json()["result"]["queue_position"] == position


async def test_a_job_far_behind_has_a_place_too(
    edge: Edge, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve_app.live.queue_positions._MOST_SEEN", 2)
    *_, last = await waiting(edge, client, count=4)
    assert (await result(client, last))["queue_position"] == 4


async def test_places_far_behind_are_not_looked_for_all_the_time(
    edge: Edge, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    async def ahead(*_: object) -> int:
        nonlocal looks
        looks += 1
        await asyncio.sleep(0.05)
        return 3

    monkeypatch.setattr("serve_app.live.queue_positions._MOST_SEEN", 2)
    monkeypatch.setattr("serve_app.live.queue_positions._SHARE", 0.001)
    monkeypatch.setattr(edge.queue, "ahead", ahead)
    jobs = await waiting(edge, client, count=5)
    answers = await asyncio.gather(*(result(client, job_id) for job_id in jobs[2:]))
    assert sorted("queue_position" in answer for answer in answers) == [False, False, True]
    await result(client, jobs[-1])
    assert looks == 1


async def test_a_job_that_has_begun_or_has_no_entry_has_no_place(
    edge: Edge, client: Client
) -> None:
    [begun] = await waiting(edge, client, count=1)
    await edge.start(begun)
    for job_id in (begun, await submit(client)):
        assert "queue_position" not in await result(client, job_id)


async def test_a_result_is_answered_while_the_queue_is_away(
    edge: Edge, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> int:
        raise LogUnavailable

    [job_id] = await waiting(edge, client, count=1)
    monkeypatch.setattr(edge.queue, "queued", away)
    assert (await result(client, job_id))["status"] == 0


async def test_a_stream_tells_it_until_the_job_begins(
    edge: Edge, client: Client, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve_app.live.streams.POSITION_PERIOD_S", 0.01)
    _, second = await waiting(edge, client, count=2)
    async with watch(f"/v1/jobs/{second}/events") as stream:
        assert await stream.names(3) == ["submitted", "queued", "queued"]
        await edge.start(second)
        while (received := await stream.event()).event == "queued":
            assert received.data == {"request_id": second, "queue_position": 2}
            assert received.id is None
        await edge.complete(second, images=0)
        assert received.event == "started"
        assert [each.event for each in await stream.end()] == ["completed"]
