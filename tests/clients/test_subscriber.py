"""The subscriber of examples/ in JavaScript, with the packages that its lock file names."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from serve_app.local.nats_server import NatsServer
from tests.clients.programs import run
from tests.support.bus import connected
from tests.support.live.subscriber import (
    Jobs,
    Subscriber,
    follows_replays_and_resumes,
    refuses_places_of_other_streams,
)

EXAMPLE = Path(__file__).parents[2] / "examples" / "subscriber"

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("subscriber")
    for name in ("follow.mjs", "package.json", "package-lock.json"):
        shutil.copy(EXAMPLE / name, folder)
    run("npm", "ci", "--no-audit", "--no-fund", cwd=folder)
    return folder / "follow.mjs"


@pytest.mark.parametrize("streams", [1, 4])
async def test_it_follows_replays_and_resumes(
    program: Path, nats_server: NatsServer, tmp_path: Path, streams: int
) -> None:
    async with connected(nats_server, log_streams=streams) as bus:
        subscriber = Subscriber(("node", program), nats_server, tmp_path, [str(streams)])
        await follows_replays_and_resumes(subscriber, Jobs(bus))


@pytest.mark.parametrize("streams", [1, 4])
async def test_it_refuses_a_place_of_another_number_of_streams(
    program: Path, nats_server: NatsServer, tmp_path: Path, streams: int
) -> None:
    subscriber = Subscriber(("node", program), nats_server, tmp_path, [str(streams)])
    async with connected(nats_server, log_streams=streams):
        await asyncio.to_thread(refuses_places_of_other_streams, subscriber, streams)
