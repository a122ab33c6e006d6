"""The program of docs/events.md, run as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from events.bus.bus import Bus
from events.bus.streams import job_subject
from events.ids import new_id
from events.types import Completed, Event, EventData, Started
from events.wire.cloud_events import encode
from serve_app.local.nats_server import NatsServer
from tests.support.polling import eventually

PAGE = Path(__file__).resolve().parents[2] / "docs" / "events.md"


@pytest.fixture
def program() -> str:
    found = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.fixture
def data_dir(nats_server: NatsServer, tmp_path: Path) -> Path:
    """Where the program looks for the address of the running server."""
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    (data_dir / "nats").symlink_to(tmp_path / "nats")
    return data_dir


@pytest.fixture
def output(data_dir: Path) -> Path:
    return data_dir / "output"


@pytest.fixture
def subscriber(program: str, output: Path) -> Iterator[None]:
    with (
        output.open("wb") as file,
        subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=output.parents[1],
            stdout=file,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        yield
        process.kill()


async def store(bus: Bus, job_id: str, version: int, data: EventData) -> None:
    event = Event(new_id(), job_id, version, datetime.now(UTC), data)
    await bus.store(job_subject(job_id), encode(event), timeout_s=5)


async def test_it_shows_what_is_stored_and_then_what_happens(
    bus: Bus, output: Path, request: pytest.FixtureRequest
) -> None:
    job_id = new_id()
    started, completed = f"{job_id} {Started.type_name}", f"{job_id} {Completed.type_name}"

    await store(bus, job_id, 1, Started(attempt=1, actor="an actor"))
    request.getfixturevalue("subscriber")
    await eventually(lambda: started in output.read_text())
    await store(bus, job_id, 2, Completed(images=1))
    await eventually(lambda: completed in output.read_text())

    shown = [line.partition(" ")[2] for line in output.read_text().splitlines()]
    assert shown == [started, completed]
