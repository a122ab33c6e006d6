"""Starts and stops in a row, and starts that are killed or interrupted at any moment.

STARTS says how many, half as many of the others: make faults STARTS=200 ARGS="-k test_starts"
"""

from __future__ import annotations

import os
import random
import secrets
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.service import Service, diffusion

STARTS = int(os.environ.get("STARTS", "2"))
SEED = int(os.environ.get("SEED", "1"))
LONGEST_START_S = 14.0
"""About what a start takes on a busy machine: moments are drawn up to this."""

pytestmark = pytest.mark.timeout(300 * STARTS + 60)


@dataclass(frozen=True)
class Place:
    """A data folder, and a temporary folder of its own, so that what stays in it is seen."""

    data_dir: Path
    temporary: Path

    def service(self) -> Service:
        service = Service(self.data_dir)
        service.environment["TMPDIR"] = str(self.temporary)
        return service

    def processes(self) -> list[str]:
        """Command lines of those that were started for this data folder, or by such a one."""
        return [
            " ".join(each.info["cmdline"] or ())
            for each in psutil.process_iter(["cmdline", "environ"])
            if (each.info["environ"] or {}).get("DARKROOM_DATA_DIR") == str(self.data_dir)
        ]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    temporary = Path("/tmp") / secrets.token_hex(2)  # short, for the paths of sockets
    temporary.mkdir(mode=0o700)
    yield Place(tmp_path / "data", temporary)
    shutil.rmtree(temporary)


def shared_memory() -> set[Path]:
    """Of Ray and of torch, whoever it belongs to."""
    return {*Path("/dev/shm").glob("*plasma*"), *Path("/dev/shm").glob("torch_*")}


def assert_nothing_left(place: Place, service: Service, before: set[Path]) -> None:
    give_up_at = time.monotonic() + 60
    while left := place.processes():
        assert time.monotonic() < give_up_at, left
        time.sleep(0.05)
    # torch has one folder for each user, whoever starts it.
    assert [path for path in place.temporary.iterdir() if "torchinductor" not in path.name] == []
    assert shared_memory() - before == set()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", service.port))


def test_starts_in_a_row_all_succeed_and_leave_nothing_behind(place: Place) -> None:
    before = shared_memory()
    for number in range(STARTS):
        service = place.service()
        try:
            service.start()
            assert service.ended(service.submit("diffusion", diffusion(seed=number)))["status"] == 1
            if number == STARTS - 1:
                assert service.disagreements() == ""
        finally:
            service.close()
        assert_nothing_left(place, service, before)


def test_a_start_follows_one_that_was_killed_at_any_moment(place: Place) -> None:
    before, moments = shared_memory(), random.Random(SEED)
    for _ in range(STARTS // 2):
        killed = place.service()
        killed.launch()
        time.sleep(moments.uniform(0, LONGEST_START_S))
        killed.stop(signal.SIGKILL)
        service = place.service()
        service.port = killed.port
        service.environment["DARKROOM_PORT"] = str(service.port)
        service.url = killed.url
        try:
            service.start()
        finally:
            service.close()
        assert_nothing_left(place, service, before)


def test_two_signals_at_any_moment_of_a_start_leave_nothing_behind(place: Place) -> None:
    before, moments = shared_memory(), random.Random(SEED)
    for _ in range(STARTS // 2):
        service = place.service()
        service.launch()
        time.sleep(moments.uniform(0.5, LONGEST_START_S))
        os.kill(service.pid, signal.SIGTERM)
        service.stop(signal.SIGINT)
        assert_nothing_left(place, service, before)
