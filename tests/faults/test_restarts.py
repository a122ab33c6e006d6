"""Stopped, killed and started again: everything is found where it was."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.service import Service, diffusion

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path / "data", DARKROOM_LEASE_S="3")
    try:
        yield service
    finally:
        service.close()


def stale_processes(folder: Path) -> list[str]:
    """Processes that name the folder on their command line."""
    return [
        " ".join(process.info["cmdline"])
        for process in psutil.process_iter(["cmdline"])
        if any(str(folder) in argument for argument in process.info["cmdline"] or ())
    ]


def test_jobs_that_wait_and_run_at_ctrl_c_end_after_the_next_start(fresh: Service) -> None:
    fresh.start()
    ids = [fresh.submit("diffusion", diffusion(steps=40, seed=n, batch_size=2)) for n in range(6)]
    while not any(fresh.result(job_id).get("progress") for job_id in ids):
        time.sleep(0.05)
    assert fresh.stop(signal.SIGINT) < 10
    assert stale_processes(fresh.data_dir) == []

    fresh.start()
    results = [fresh.ended(job_id) for job_id in ids]
    assert [result["status"] for result in results] == [1] * 6
    for job_id in ids:
        assert fresh.event_names(job_id).count("completed") == 1

    # Killed outright: what it started may live on, and the next start copes with that.
    job_id = fresh.submit("diffusion", diffusion(steps=80))
    fresh.stop(signal.SIGKILL)
    fresh.start()
    assert fresh.ended(job_id)["status"] == 1
    assert fresh.disagreements() == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_start_that_is_interrupted_leaves_nothing_behind(fresh: Service, number: int) -> None:
    fresh.launch()
    give_up_at = time.monotonic() + 60
    while not fresh.processes("ray::"):
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
    assert fresh.stop(number) < 15
    assert stale_processes(fresh.data_dir) == []
