"""A service whose disk is full recovers by itself, and loses no job, when there is room again."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.test_failures import check_ended_once, wait_running
from tests.support.polling import eventually
from tests.support.service import Service, diffusion

DISK_MIB = 96
FILLING = "filling"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    folder = tmp_path / "data"
    folder.mkdir()
    options = f"size={DISK_MIB}m,mode=0700"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a disk cannot be mounted: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> None:
    """Fill the disk up to the last byte with a file."""
    with (disk / FILLING).open("ab", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass


def refusal(service: Service, accepted: list[str]) -> str:
    """Submit a job, and return the message of the 503 if it was refused at once; else nothing."""
    began = time.monotonic()
    answer = service.http.post("/diffusion/v1/generate", json=diffusion(steps=1))
    if answer.status_code == 202:  # The event has found a little room.
        accepted.append(answer.json()["request_id"])
        return ""
    assert answer.status_code == 503, answer.text
    return str(answer.json()["error"]["message"]) if time.monotonic() - began < 5 else ""


def test_a_full_disk_refuses_jobs_with_the_reason_and_is_forgotten_when_it_has_room(
    disk: Path,
) -> None:
    short = {"DARKROOM_TEST_WRITE_CHECK_PERIOD_S": "0.5", "DARKROOM_MAX_COST": "2000"}
    with Service(disk, **short) as service:
        pid = service.nats_pid
        jobs = [service.submit("diffusion", diffusion(steps=100, seed=seed)) for seed in (1, 2)]
        wait_running(service, jobs[0])

        def is_refused() -> bool:
            fill(disk)
            return "no space left on device" in refusal(service, jobs)

        asyncio.run(eventually(is_refused))
        answer = service.http.get("/health/ready")
        assert answer.status_code == 503
        assert "no space left on device" in answer.json()["error"]["details"]
        (disk / FILLING).unlink()
        jobs.append(service.submit("diffusion", diffusion(steps=1)))
        assert service.nats_pid != pid
        for job_id in jobs:
            assert service.ended(job_id)["status"] == 1
            check_ended_once(service, job_id)
        assert service.disagreements() == ""
