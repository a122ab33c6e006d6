"""kill -9 of the callbacks role in the middle of 1,000 deliveries."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from events.types import CallbackDelivered, CallbackExhausted
from tests.support.callbacks.receiver import Receiver, status
from tests.support.callbacks.role import SECRET, World, running_world
from tests.support.polling import eventually

JOBS = 1000
KILLS = 3
DEADLINE_S = 240.0
ROLE = """
import asyncio
from actors.roles import run_callbacks
from settings.settings import Settings
asyncio.run(run_callbacks(Settings.load()))
"""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncGenerator[World]:
    async with running_world(tmp_path) as world:
        yield world


@asynccontextmanager
async def role(world: World, folder: Path) -> AsyncGenerator[None]:
    """Run the role in a process of its own, which is killed at the end."""
    settings = {
        "DARKROOM_NATS_URL": world.server.url,
        "DARKROOM_DATA_DIR": str(folder),
        "DARKROOM_SECRET": SECRET.decode(),
        "DARKROOM_CALLBACK_ALLOW_NETWORKS": "127.0.0.0/8",
        "DARKROOM_CALLBACK_DELAYS_S": "0,0.2,0.2",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ROLE, env={**os.environ, **settings}
    )
    try:
        yield
        assert process.returncode is None, "the role ended by itself"
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()


@pytest.mark.timeout(1200)
async def test_each_delivery_ends_once_and_has_one_id(world: World, tmp_path: Path) -> None:
    async with (
        Receiver([status(200, after_s=0.01)]) as healthy,
        Receiver([status(410)]) as gone,
        Receiver([status(500), status(200)]) as shaky,
    ):
        receivers = [healthy, healthy, gone, shaky]
        urls = [receivers[number % 4].url for number in range(JOBS)]
        jobs = [await world.ended_job(url) for url in urls]
        for part in range(1, KILLS + 1):
            async with role(world, tmp_path):
                await healthy.wait_for(part * JOBS // 2 // (KILLS + 2), timeout_s=DEADLINE_S)
        assert await world.queue.job_ids(), "it was killed in the middle"
        async with role(world, tmp_path):
            await eventually(lambda: is_drained(world), within_s=DEADLINE_S)
        received = [*healthy.received, *gone.received, *shaky.received]

    ends = [(await world.events(job_id))[-1] for job_id in jobs]
    expected = [CallbackExhausted if url == gone.url else CallbackDelivered for url in urls]
    assert [type(end) for end in ends] == expected
    bodies = defaultdict(set)
    for request in received:
        bodies[request.headers["webhook-id"]].add(request.body)
    assert set(bodies) == {f"msg_{job_id}" for job_id in jobs}
    assert all(len(each) == 1 for each in bodies.values())
    events = [data for job_id in jobs for data in await world.events(job_id)]
    kinds = Counter(type(data) for data in events)
    assert kinds[CallbackDelivered] + kinds[CallbackExhausted] == JOBS, "each ended once"


async def is_drained(world: World) -> bool:
    return not await world.queue.job_ids()
