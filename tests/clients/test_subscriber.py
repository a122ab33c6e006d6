"""The subscriber of examples/ in JavaScript, with the packages that its lock file names."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from events.bus.bus import Bus
from local.nats_server import NatsServer
from tests.clients.programs import run
from tests.support.live.subscriber import Jobs, Subscriber, follows_replays_and_resumes

EXAMPLE = Path(__file__).parents[2] / "examples" / "subscriber"

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("subscriber")
    for name in ("follow.mjs", "package.json", "package-lock.json"):
        shutil.copy(EXAMPLE / name, folder)
    run("npm", "ci", "--no-audit", "--no-fund", cwd=folder)
    return folder / "follow.mjs"


async def test_it_follows_replays_and_resumes(
    program: Path, nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    subscriber = Subscriber(("node", program), nats_server, tmp_path)
    await follows_replays_and_resumes(subscriber, Jobs(bus))
