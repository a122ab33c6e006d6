"""The whole service on a log of four streams, and over a restart."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import nats
import pytest

from examples.receiver import Receiver
from tests.support.polling import eventually
from tests.support.service import Service, diffusion, workflow

pytestmark = pytest.mark.timeout(1800)

OF_A_JOB = ["submitted", "started", "image_stored", "completed"]
JOBS = 10


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Service]:
    settings = {
        "DARKROOM_LOG_STREAMS": "4",
        "DARKROOM_LOG_PROJECTIONS": "2",
        "DARKROOM_LOG_ROUTERS": "2",
        "DARKROOM_CALLBACK_PROCESSES": "2",
        "DARKROOM_LOG_HOT_S": "1",  # jobs go to the archive while the test runs
        "DARKROOM_APPEND_TIMEOUT_S": "5",
        "DARKROOM_JANITOR_PERIOD_S": "2",
    }
    service = Service(tmp_path / "data", **settings)
    try:
        service.start()
        yield service
    finally:
        service.close()


def follow(service: Service, cursor: str, most: int) -> list[tuple[str, str, str]]:
    """Names, jobs and ids of the first stored events of all jobs behind a cursor."""
    found: list[tuple[str, str, str]] = []
    fields: dict[str, str] = {}
    options: dict[str, Any] = {"params": {"cursor": cursor}, "timeout": 60}
    with service.http.stream("GET", "/v1/events", **options) as answer:
        assert answer.status_code == httpx.codes.OK
        for line in answer.iter_lines():
            name, _, value = line.partition(": ")
            if name:
                fields[name] = value
            else:
                if "data" in fields and "id" in fields:
                    subject = json.loads(fields["data"])["subject"]
                    found.append((fields["event"], subject, fields["id"]))
                fields = {}
            if len(found) == most:
                break
    return found


async def messages(service: Service) -> dict[str, int]:
    """That each stream of the log ever had."""
    client = await nats.connect(service.nats_url)
    infos = await client.jetstream().streams_info()
    await client.close()
    names = {info.config.name or "": info.state.last_seq for info in infos}
    return {name: last for name, last in names.items() if name.startswith("JOBS")}


async def test_jobs_run_and_are_told_of_on_four_streams_and_over_a_restart(four: Service) -> None:
    key, secret = four.command("keys", "create", "admin").stdout.split()
    four.http.headers["Authorization"] = f"Bearer {key}"
    results: dict[str, dict[str, Any]] = {}
    with Receiver(secret) as receiver:
        for number in range(JOBS):
            flavour = "workflow" if number % 2 else "diffusion"
            body = workflow(seed=number) if number % 2 else diffusion(seed=number)
            job_id = four.submit(flavour, body, callback_url=receiver.url)
            results[job_id] = await asyncio.to_thread(four.ended, job_id, flavour)
        called = [json.loads(receiver.bodies.get(timeout=60)) for _ in results]
    assert [result["status"] for result in results.values()] == [1] * JOBS
    assert {each["request_id"]: each for each in called} == results

    last_id = await check_streams(four, list(results))
    waiting = four.submit("diffusion", diffusion(steps=8, seed=99))
    four.stop(within_s=120)
    refused = refuse_other_streams(four)
    assert refused.returncode == 1
    assert (
        "DARKROOM_LOG_STREAMS is 2, but the event log is 4 streams: set it to 4" in refused.stderr
    )
    four.start()
    four.http.headers["Authorization"] = f"Bearer {key}"
    assert (await asyncio.to_thread(four.ended, waiting))["status"] == 1
    for number, (job_id, result) in enumerate(results.items()):
        assert four.result(job_id, "workflow" if number % 2 else "diffusion") == result
    later = await asyncio.to_thread(follow, four, last_id, 1)
    assert later[0][:2] == ("submitted", waiting)
    assert four.disagreements() == ""
    doctor = four.command("doctor", check=False)
    assert "all 8 streams" in doctor.stdout + doctor.stderr


async def check_streams(four: Service, ids: list[str]) -> str:
    """They are used, all is told, and still is once the archive has it. The last id."""
    last = await messages(four)
    assert sorted(last) == [f"JOBS_{index}" for index in range(4)]
    assert sum(last.values()) == 4 * JOBS
    assert len([each for each in last.values() if each]) > 1
    every = await asyncio.to_thread(follow, four, "0", 4 * JOBS)
    check_told(every, ids)

    async def is_archived() -> bool:
        """With nothing left in the log."""
        client = await nats.connect(four.nats_url)
        infos = await client.jetstream().streams_info()
        await client.close()
        return not sum(
            info.state.messages for info in infos if (info.config.name or "").startswith("JOBS")
        )

    await eventually(is_archived, within_s=120)
    archived = await asyncio.to_thread(follow, four, every[5][2], 4 * JOBS - 6)
    assert sorted(each[:2] for each in archived) == sorted(each[:2] for each in every[6:])
    return every[-1][2]


def check_told(events: list[tuple[str, str, str]], ids: list[str]) -> None:
    """Each event once, each job's in order, each under a place of its own."""
    by_job: dict[str, list[str]] = {}
    for name, job_id, _ in events:
        by_job.setdefault(job_id, []).append(name)
    assert by_job == dict.fromkeys(ids, OF_A_JOB)
    assert len({each[2] for each in events}) == len(events)


def refuse_other_streams(service: Service) -> Any:
    before = service.environment["DARKROOM_LOG_STREAMS"]
    service.environment["DARKROOM_LOG_STREAMS"] = "2"
    try:
        return service.command("up", check=False)
    finally:
        service.environment["DARKROOM_LOG_STREAMS"] = before
