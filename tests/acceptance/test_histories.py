"""Jobs of a whole service leave its log for history objects, and are what they were before."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import nats
import pytest

from tests.support.polling import eventually
from tests.support.service import Service, diffusion

pytestmark = pytest.mark.timeout(1200)

OF_A_JOB = ["submitted", "started", "image_stored", "completed"]


@pytest.fixture
def hurried(tmp_path: Path) -> Iterator[Service]:
    """A service whose jobs leave the log while the test runs."""
    settings = {"DARKROOM_LOG_HOT_S": "0", "DARKROOM_TEST_JANITOR_PERIOD_S": "2"}
    with Service(tmp_path / "data", **settings) as service:
        yield service


async def left_in_logs(service: Service) -> dict[str, int]:
    client = await nats.connect(service.nats_url)
    infos = await client.jetstream().streams_info()
    await client.close()
    names = ("JOBS", "DELIVERIES")
    return {
        str(info.config.name): info.state.messages for info in infos if info.config.name in names
    }


def follow(service: Service, most: int) -> list[tuple[int, str, str]]:
    """Ids, names and jobs of the first stored events of all jobs."""
    return list(islice(service.stored(after="0", timeout_s=60), most))


def callbacks(service: Service, job_id: str) -> dict[str, Any]:
    report: dict[str, Any] = service.http.get(f"/v1/jobs/{job_id}/callbacks").json()
    return report


async def test_jobs_that_left_the_log_are_what_they_were(hurried: Service) -> None:
    with hurried.receiver() as receiver:
        ids = [
            hurried.submit("diffusion", diffusion(seed=seed), callback_url=receiver.url)
            for seed in range(2)
        ]
        results = [await asyncio.to_thread(hurried.ended, job_id) for job_id in ids]
        for _ in ids:
            receiver.bodies.get(timeout=60)
        every = await asyncio.to_thread(follow, hurried, 4 * len(ids))

        async def are_empty() -> bool:
            return not sum((await left_in_logs(hurried)).values())

        await eventually(are_empty, within_s=120)
        assert [hurried.result(job_id) for job_id in ids] == results
        assert await asyncio.to_thread(follow, hurried, 4 * len(ids)) == every
        for job_id in ids:
            [history] = (hurried.data_dir / "images" / job_id).glob("history-*.gz")
            _, *lines = gzip.decompress(history.read_bytes()).splitlines()
            types = [json.loads(line)["event"]["type"] for line in lines]
            assert types[:4] == [f"darkroom.job.{name}.v1" for name in OF_A_JOB]

        again = hurried.http.post(f"/v1/jobs/{ids[0]}/callbacks/redeliver")
        assert again.status_code == httpx.codes.ACCEPTED
        await eventually(lambda: len(callbacks(hurried, ids[0])["tries"]) == 2, within_s=60)
        await eventually(are_empty, within_s=120)
    report = callbacks(hurried, ids[0])
    assert (report["state"], len(report["tries"])) == ("delivered", 2)

    assert hurried.http.delete(f"/v1/jobs/{ids[1]}").json() == {"erased": True}
    assert not list((hurried.data_dir / "images").glob(f"{ids[1]}/*"))
    await eventually(are_empty, within_s=120)
    assert hurried.disagreements() == ""
    hurried.command("rebuild")
    assert hurried.result(ids[0]) == results[0]
    assert hurried.http.get(f"/v1/jobs/{ids[1]}").status_code == httpx.codes.NOT_FOUND
    assert hurried.disagreements() == ""
