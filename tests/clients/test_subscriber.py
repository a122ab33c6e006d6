"""The subscriber of examples/ in JavaScript, with the packages that its lock file names."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from events.bus.bus import Bus
from serve_app.local.nats_server import NatsServer
from tests.clients.programs import run
from tests.support.live.subscriber import Jobs, Subscriber, follows_replays_and_resumes

EXAMPLE = Path(__file__).parents[2] / "examples" / "subscriber"

pytestmark = pytest.mark.timeout(1200)


async def test_it_follows_replays_and_resumes(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    program = tmp_path / "subscriber"
    program.mkdir()
    for name in ("follow.mjs", "package.json", "package-lock.json"):
        shutil.copy(EXAMPLE / name, program)
    run("npm", "ci", "--no-audit", "--no-fund", cwd=program)
    subscriber = Subscriber(("node", program / "follow.mjs"), nats_server, tmp_path)
    await follows_replays_and_resumes(subscriber, Jobs(bus))
