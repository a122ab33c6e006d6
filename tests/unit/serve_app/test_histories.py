"""A job whose events have left the log is to its callers what it was before."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from actors.upkeep.historian import Historian
from events.decisions import FailAttempt
from events.errors import DatabaseUnavailable
from events.history import HistoryObjects
from events.ids import new_id
from events.job import fold
from events.log import Appended, Conflict, utc_now
from events.store.database import Database
from events.store.ended_jobs import EndedJobs
from events.store.leases import Leases
from events.store.read_model import ReadModel
from events.store.records import ApiKey, Scope
from events.types import CallbackDelivered, Event
from serve_app.access.owner_limits import OwnerLimits, Reservation
from storage.images import ImageStore
from tests.support.edge import ACTOR, Client, Edge
from tests.support.generate_bodies import diffusion_body
from tests.support.live.stream import watching

DIFFUSION = "/diffusion/v1/generate"
KEY = {"Idempotency-Key": "order 1"}


async def away(*_: object, **__: object) -> None:
    raise DatabaseUnavailable


@pytest.fixture
async def historian(tmp_path: Path, edge: Edge) -> AsyncGenerator[Historian]:
    """For which the hot time of every job has passed."""
    database = Database(f"sqlite+aiosqlite:///{tmp_path / 'darkroom.sqlite3'}")

    def later() -> datetime:
        return utc_now() + timedelta(hours=2)

    yield Historian(
        holder="a",
        leases=Leases(database),
        log=edge.services.log,
        deliveries=edge.services.deliveries,
        images=ImageStore((tmp_path / "images").as_uri()),
        ended_jobs=EndedJobs(database),
        hot_s=3600.0,
        lease_s=120,
        period_s=1,
        now=later,
    )
    await database.close()


async def moved_job(edge: Edge, client: Client, historian: Historian, **query: str) -> str:
    answer = await client.post(DIFFUSION, json=diffusion_body(), headers=KEY, params=query)
    job_id = str(answer.json()["request_id"])
    await edge.run(job_id)
    if query:
        delivered = CallbackDelivered(attempt=1)
        event = Event(id=new_id(), job_id=job_id, version=1, time=utc_now(), data=delivered)
        await edge.services.deliveries.append(event, expected=0)
    await edge.project()
    await historian.round()
    assert await edge.log.read(job_id) == []
    return job_id


CALLED_BACK = {"callback_url": "http://127.0.0.1:9000/done"}


async def test_it_is_shown_as_before(edge: Edge, client: Client, historian: Historian) -> None:
    job_id = await moved_job(edge, client, historian)
    assert (await client.get(f"/v1/jobs/{job_id}")).json()["status"] == 1
    result = await client.get("/diffusion/v1/result", params={"request_id": job_id})
    assert result.status_code == 200
    assert len(await edge.services.history.read(job_id)) == 4
    _, kept = await edge.services.read_model.usage.kept_bytes("alice")
    job = fold(await edge.services.history.read(job_id))
    assert job is not None
    assert (kept.log_bytes, kept.result_bytes) == (0, len(b"pixels") + job.log_bytes)


async def test_its_idempotency_key_meets_it(
    edge: Edge, client: Client, historian: Historian
) -> None:
    job_id = await moved_job(edge, client, historian)
    again = await client.post(DIFFUSION, json=diffusion_body(), headers=KEY)
    assert (again.status_code, again.json()["request_id"]) == (202, job_id)
    refused = await client.post(DIFFUSION, json=diffusion_body(steps=10**9), headers=KEY)
    assert refused.status_code == 409
    assert await edge.log.read(job_id) == []


async def test_a_key_needs_the_database_only_where_the_log_says_nothing(
    edge: Edge, client: Client, historian: Historian, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await moved_job(edge, client, historian)

    async def submitted(headers: dict[str, str]) -> int:
        answer = await client.post(DIFFUSION, json=diffusion_body(), headers=headers)
        return answer.status_code

    assert await submitted({"Idempotency-Key": "2"}) == 202
    monkeypatch.setattr(ReadModel, "job", away)
    monkeypatch.setattr(HistoryObjects, "has", away)
    monkeypatch.setattr(HistoryObjects, "get", away)
    assert await submitted({"Idempotency-Key": "2"}) == 202
    assert await submitted(KEY) == 503
    assert await submitted({}) == 202
    assert (await client.get(f"/v1/jobs/{job_id}")).status_code == 503
    assert await edge.log.read(job_id) == []


async def test_a_repeat_finds_a_job_that_leaves_the_log_while_the_database_is_away(
    edge: Edge, client: Client, historian: Historian, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await client.post(DIFFUSION, json=diffusion_body(), headers=KEY)
    await edge.run(first.json()["request_id"])
    await edge.project()
    append = edge.log.append

    async def append_late(event: Event, *, expected: int) -> Appended | Conflict:
        await historian.round()
        return await append(event, expected=expected)

    monkeypatch.setattr(ReadModel, "job", away)
    monkeypatch.setattr(edge.log, "append", append_late)
    again = await client.post(DIFFUSION, json=diffusion_body(), headers=KEY)
    assert (again.status_code, again.json()["status"]) == (202, 1)


async def test_a_repeat_finds_a_job_that_leaves_the_log_while_room_is_reserved(
    edge: Edge, client: Client, historian: Historian, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await client.post(DIFFUSION, json=diffusion_body(), headers=KEY)
    job_id = first.json()["request_id"]
    await edge.run(job_id)
    reserve = OwnerLimits.reserve

    @asynccontextmanager
    async def reserve_late(
        limits: OwnerLimits, key: ApiKey, **sizes: int
    ) -> AsyncGenerator[Reservation]:
        async with reserve(limits, key, **sizes) as reservation:
            await edge.project()
            await historian.round()
            yield reservation

    monkeypatch.setattr(OwnerLimits, "reserve", reserve_late)
    again = await client.post(DIFFUSION, json=diffusion_body(), headers=KEY)
    assert (again.status_code, again.json()["status"]) == (202, 1)
    assert await edge.log.read(job_id) == []


async def test_it_can_be_erased(edge: Edge, client: Client, historian: Historian) -> None:
    job_id = await moved_job(edge, client, historian)
    for _ in range(2):
        answer = await client.delete(f"/v1/jobs/{job_id}")
        assert (answer.status_code, answer.json()) == (200, {"erased": True})
    assert (await client.get(f"/v1/jobs/{job_id}")).status_code == 404
    assert len(await edge.services.history.read(job_id)) == 1
    stored = [file.key async for files in edge.services.images.files(job_id) for file in files]
    assert stored == []
    again = await client.post(DIFFUSION, json=diffusion_body(), headers=KEY)
    assert again.status_code == 409
    await historian.round()  # what says that it was erased leaves the log, too
    assert await edge.log.read(job_id) == []
    again = await client.post(DIFFUSION, json=diffusion_body(), headers=KEY)
    assert again.status_code == 409
    assert (await client.delete(f"/v1/jobs/{job_id}")).json() == {"erased": True}


async def test_its_callback_can_be_asked_for_again(
    edge: Edge, client: Client, historian: Historian
) -> None:
    job_id = await moved_job(edge, client, historian, **CALLED_BACK)
    assert (await client.get(f"/v1/jobs/{job_id}/callbacks")).json()["state"] == "delivered"
    answer = await client.post(f"/v1/jobs/{job_id}/callbacks/redeliver")
    assert (answer.status_code, answer.json()["state"]) == (202, "pending")
    assert [each for each, _ in edge.callback_queue.recorded] == [job_id]
    await historian.round()
    assert await edge.services.deliveries.read_raw([job_id])  # it was not delivered yet


async def test_one_that_failed_can_be_submitted_again(
    edge: Edge, client: Client, historian: Historian
) -> None:
    answer = await client.post(DIFFUSION, json=diffusion_body())
    job_id = str(answer.json()["request_id"])
    await edge.start(job_id)
    await edge.execute(job_id, FailAttempt(actor=ACTOR, message="broken", final=True))
    await edge.project()
    await historian.round()
    async with await edge.client("admin", scopes=(Scope.ADMIN,)) as admin:
        first = await admin.post(f"/v1/admin/jobs/{job_id}/resubmit")
        assert first.status_code == 202
        retry_id = first.json()["request_id"]
        await edge.run(retry_id)
        await edge.project()
        await historian.round()
        assert await edge.log.read(retry_id) == []
        again = await admin.post(f"/v1/admin/jobs/{job_id}/resubmit")
    assert again.json()["request_id"] == retry_id
    assert await edge.log.read(retry_id) == []


async def test_an_moved_job_is_told_as_before(
    edge: Edge, client: Client, historian: Historian
) -> None:
    job_id = await moved_job(edge, client, historian)
    async with watching(edge.app, f"/v1/jobs/{job_id}/events", await edge.key()) as stream:
        received = await stream.end()
    told = [(each.id, each.event) for each in received]
    assert told == [("1", "submitted"), ("2", "started"), ("3", "image_stored"), ("4", "completed")]
    assert stream.is_whole


async def test_a_cursor_finds_what_has_left_the_log_in_its_place(
    edge: Edge, client: Client, historian: Historian
) -> None:
    answer = await client.post(DIFFUSION, json=diffusion_body())
    first = str(answer.json()["request_id"])
    second = await moved_job(edge, client, historian)
    await edge.start(first)
    async with watching(edge.app, "/v1/events?cursor=0", await edge.key()) as stream:
        received = [await stream.event() for _ in range(6)]
    assert [each.id for each in received] == ["1", "2", "3", "4", "5", "6"]
    jobs = [each.data["subject"] for each in received]
    assert jobs == [first, second, second, second, second, first]


async def test_what_has_left_the_log_is_another_owners_no_more_than_before(
    edge: Edge, client: Client, bob: Client, historian: Historian
) -> None:
    await moved_job(edge, client, historian)
    answer = await bob.post(DIFFUSION, json=diffusion_body())
    async with watching(edge.app, "/v1/events?cursor=0", await edge.key("bob")) as stream:
        received = await stream.event()
    assert received.data["subject"] == answer.json()["request_id"]
