"""A job whose events have left the log is to its callers what it was before."""

from __future__ import annotations

import httpx
import pytest

from actors.upkeep.archiver import Archiver
from events.archive.history import ArchivedJobs
from events.decisions import FailAttempt
from events.errors import DatabaseUnavailable
from events.job import fold
from events.store.read_model import ReadModel
from events.store.records import Scope
from events.wire.callback_keys import job_id_of
from tests.support.edge import ACTOR, Edge
from tests.support.generate_bodies import diffusion_body
from tests.unit.serve_app.archive.conftest import DIFFUSION, KEY, archived_job

CALLED_BACK = {"callback_url": "http://127.0.0.1:9000/done"}


async def test_it_is_shown_as_before(
    edge: Edge, client: httpx.AsyncClient, archiver: Archiver
) -> None:
    job_id = await archived_job(edge, client, archiver)
    assert (await client.get(f"/v1/jobs/{job_id}")).json()["status"] == 1
    result = await client.get("/diffusion/v1/result", params={"request_id": job_id})
    assert result.status_code == 200
    assert len(await edge.services.history.read(job_id)) == 4
    _, kept = await edge.services.read_model.usage.kept_bytes("alice")
    job = fold(await edge.services.history.read(job_id))
    assert job is not None
    assert (kept.log_bytes, kept.result_bytes) == (0, len(b"pixels") + job.log_bytes)


async def test_its_idempotency_key_meets_it(
    edge: Edge, client: httpx.AsyncClient, archiver: Archiver
) -> None:
    job_id = await archived_job(edge, client, archiver)
    again = await client.post(DIFFUSION, json=diffusion_body(), headers=KEY)
    assert (again.status_code, again.json()["request_id"]) == (202, job_id)
    refused = await client.post(DIFFUSION, json=diffusion_body(steps=10**9), headers=KEY)
    assert refused.status_code == 409
    assert await edge.log.read(job_id) == []


async def test_a_key_needs_the_database_only_where_the_log_says_nothing(
    edge: Edge, client: httpx.AsyncClient, archiver: Archiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await archived_job(edge, client, archiver)
    open_job = await client.post(DIFFUSION, json=diffusion_body(), headers={"Idempotency-Key": "2"})

    async def away(*_: object, **__: object) -> None:
        raise DatabaseUnavailable

    monkeypatch.setattr(ReadModel, "job", away)
    monkeypatch.setattr(ArchivedJobs, "has", away)
    monkeypatch.setattr(ArchivedJobs, "get", away)

    async def submitted(headers: dict[str, str]) -> int:
        answer = await client.post(DIFFUSION, json=diffusion_body(), headers=headers)
        return answer.status_code

    assert open_job.status_code == 202
    assert await submitted({"Idempotency-Key": "2"}) == 202
    assert await submitted(KEY) == 503
    assert await submitted({}) == 202
    assert (await client.get(f"/v1/jobs/{job_id}")).status_code == 503
    assert await edge.log.read(job_id) == []


async def test_it_can_be_erased(edge: Edge, client: httpx.AsyncClient, archiver: Archiver) -> None:
    job_id = await archived_job(edge, client, archiver)
    for _ in range(2):
        answer = await client.delete(f"/v1/jobs/{job_id}")
        assert (answer.status_code, answer.json()) == (200, {"erased": True})
    assert (await client.get(f"/v1/jobs/{job_id}")).status_code == 404
    assert len(await edge.services.history.read(job_id)) == 1
    stored = [file.key async for files in edge.services.images.files() for file in files]
    for key in stored:
        assert job_id.encode() not in await edge.services.images.get(key)
    again = await client.post(DIFFUSION, json=diffusion_body(), headers=KEY)
    assert again.status_code == 409
    await archiver.round()  # what says that it was erased leaves the log, too
    assert await edge.log.read(job_id) == []
    again = await client.post(DIFFUSION, json=diffusion_body(), headers=KEY)
    assert again.status_code == 409
    assert (await client.delete(f"/v1/jobs/{job_id}")).json() == {"erased": True}


async def test_its_callback_can_be_asked_for_again(
    edge: Edge, client: httpx.AsyncClient, archiver: Archiver
) -> None:
    job_id = await archived_job(edge, client, archiver, **CALLED_BACK)
    shown = await client.get(f"/v1/jobs/{job_id}/callbacks")
    assert shown.json()["state"] == "delivered"
    answer = await client.post(f"/v1/jobs/{job_id}/callbacks/redeliver")
    assert (answer.status_code, answer.json()["state"]) == (202, "pending")
    assert [job_id_of(key) for key, _ in edge.callback_queue.recorded] == [job_id]
    await archiver.round()
    assert await edge.services.deliveries.stored([job_id])  # it was not delivered yet


async def test_one_that_failed_can_be_submitted_again(
    edge: Edge, client: httpx.AsyncClient, archiver: Archiver
) -> None:
    answer = await client.post(DIFFUSION, json=diffusion_body())
    job_id = str(answer.json()["request_id"])
    await edge.start(job_id)
    await edge.execute(job_id, FailAttempt(actor=ACTOR, message="broken", final=True))
    await edge.project()
    await archiver.round()
    async with await edge.client("admin", scopes=(Scope.ADMIN,)) as admin:
        first = await admin.post(f"/v1/admin/jobs/{job_id}/resubmit")
        assert first.status_code == 202
        retry_id = first.json()["request_id"]
        await edge.run(retry_id)
        await edge.project()
        await archiver.round()
        assert await edge.log.read(retry_id) == []
        again = await admin.post(f"/v1/admin/jobs/{job_id}/resubmit")
    assert again.json()["request_id"] == retry_id
    assert await edge.log.read(retry_id) == []
