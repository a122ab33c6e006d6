"""A service that is stopped, killed, copied and started again, at any moment, loses nothing.

STARTS is the number of starts; the tests of interrupted starts do half as many:

    make faults STARTS=200 ARGS="-k test_restarts"
"""

from __future__ import annotations

import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.patience import FACTOR
from tests.support.service import Service, diffusion

STARTS = int(os.environ.get("STARTS", "2"))
SEED = int(os.environ.get("SEED", "1"))
LONGEST_START_S = 14.0
"""The approximate seconds of a start on a busy machine, and the maximum of random moments."""

pytestmark = pytest.mark.timeout(max(1200, 300 * STARTS + 60))


class Place:
    """A data folder and its own temporary folder, so that remaining files are seen."""

    def __init__(self, data_dir: Path, temporary: Path) -> None:
        self.data_dir = data_dir
        self._temporary = temporary
        self._shared_memory = _shared_memory()

    def service(self) -> Service:
        service = Service(self.data_dir, DARKROOM_TEST_LEASE_S="3")
        service.environment["TMPDIR"] = str(self._temporary)
        return service

    def require_nothing_left(self, service: Service) -> None:
        give_up_at = time.monotonic() + 60 * FACTOR
        while left := self._processes():
            assert time.monotonic() < give_up_at, left
            time.sleep(0.05)
        # torch has one folder per user for all processes. The run marks of job actors that were
        # killed are removed by the next ones.
        kept = ("torchinductor", "darkroom-run-")
        files = [
            path
            for path in self._temporary.iterdir()
            if not any(name in path.name for name in kept)
        ]
        assert files == []
        assert _shared_memory() - self._shared_memory == set()
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", service.port))

    def _processes(self) -> list[str]:
        """Return the command lines of the processes that were started for this data folder, and of
        their children.
        """
        return [
            " ".join(each.info["cmdline"] or ())
            for each in psutil.process_iter(["cmdline", "environ"])
            if (each.info["environ"] or {}).get("DARKROOM_DATA_DIR") == str(self.data_dir)
        ]


def _shared_memory() -> set[str]:
    """Return the shared memory of Ray and of torch that no process uses any more."""
    paths = {*Path("/dev/shm").glob("*plasma*"), *Path("/dev/shm").glob("torch_*")}
    used: set[str] = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            used |= {each.path for each in (*process.open_files(), *process.memory_maps())}
    return {str(path) for path in paths} - used


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    temporary = Path("/tmp") / secrets.token_hex(2)  # short, for the paths of sockets
    temporary.mkdir(mode=0o700)
    yield Place(tmp_path / "data", temporary)
    shutil.rmtree(temporary)


def test_jobs_that_wait_and_run_at_ctrl_c_end_after_the_next_start(place: Place) -> None:
    with place.service() as service:
        ids = [
            service.submit("diffusion", diffusion(steps=40, seed=n, batch_size=2)) for n in range(6)
        ]
        while not any(service.result(job_id).get("progress") for job_id in ids):
            time.sleep(0.05)
        assert service.stop(within_s=30 * FACTOR) < 10 * FACTOR
        place.require_nothing_left(service)

        service.start()
        results = [service.ended(job_id) for job_id in ids]
        assert [result["status"] for result in results] == [1] * 6
        for job_id in ids:
            assert service.event_names(job_id).count("completed") == 1

        # The process is killed at once, so its children may survive, which the next start ends.
        job_id = service.submit("diffusion", diffusion(steps=80))
        service.stop(signal.SIGKILL)
        service.start()
        assert service.ended(job_id)["status"] == 1
        assert service.disagreements() == ""


def test_starts_in_a_row_all_succeed_and_leave_nothing_behind(place: Place) -> None:
    for number in range(STARTS):
        with place.service() as service:
            assert service.ended(service.submit("diffusion", diffusion(seed=number)))["status"] == 1
        place.require_nothing_left(service)


@pytest.mark.parametrize(("number", "earliest_s"), [(signal.SIGKILL, 0.0), (signal.SIGTERM, 0.5)])
def test_a_start_that_is_interrupted_at_any_moment_leaves_nothing_behind(
    place: Place, number: signal.Signals, earliest_s: float
) -> None:
    """After a kill the next start removes what is left; the first signal is followed by another."""
    moments = random.Random(SEED)
    for _ in range(STARTS // 2):
        service = place.service()
        service.launch()
        time.sleep(moments.uniform(earliest_s, LONGEST_START_S))
        if number == signal.SIGKILL:
            service.stop(number)
            with service:
                pass
        else:
            os.kill(service.pid, number)
            service.stop(within_s=30 * FACTOR)
        place.require_nothing_left(service)


def test_a_service_on_a_copy_has_all_jobs_and_images_and_runs_new_jobs(tmp_path: Path) -> None:
    with Service(tmp_path / "original") as original:
        ended = original.submit("diffusion", diffusion(steps=2))
        before = original.ended(ended)
        image = original.http.get(before["results"][0]["url"]).content
        open_jobs = [original.submit("diffusion", diffusion(steps=60, seed=n)) for n in range(4)]
        original.stop(within_s=30 * FACTOR)
    subprocess.run(["cp", "-a", original.data_dir, tmp_path / "copy"], check=True)

    with Service(tmp_path / "copy") as copy:
        after = copy.result(ended)
        assert after["ended_at"] == before["ended_at"]
        path = httpx.URL(after["results"][0]["url"]).raw_path.decode()
        assert copy.http.get(path).content == image
        new = copy.submit("diffusion", diffusion(steps=2, seed=8))
        for job_id in (*open_jobs, new):
            assert copy.ended(job_id)["status"] == 1
        assert copy.disagreements() == ""
