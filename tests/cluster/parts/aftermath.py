"""Checks of all jobs once callers have stopped: none is lost, blamed or ended twice."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from storage.images import ImageStore
from tests.cluster.parts.callers import Callers
from tests.cluster.parts.local_cluster import LocalCluster
from tests.faults.checker.gather import gather
from tests.faults.checker.history import Folded, from_record
from tests.faults.checker.invariants import violations
from tests.faults.checker.record import read_record
from tests.support.patience import FACTOR

_SETTLE_S = 60.0


@asynccontextmanager
async def under_load(
    cluster: LocalCluster, callers: Callers, name: str, *, most_silent_s: float
) -> AsyncGenerator[None]:
    """Submit jobs while the context lasts.

    At the end each has ended once with its own result, and no caller waited longer than
    `most_silent_s` for an answer.
    """
    async with callers.calling():
        yield
    await _all_holds(cluster, callers.record.path)
    sys.stdout.write(f"\n{name}: {callers.probe}\n")
    assert callers.probe.longest_s < most_silent_s * FACTOR, str(callers.probe)


async def _all_holds(cluster: LocalCluster, record_path: Path) -> None:
    """Check the invariants, after waiting for projection and callbacks."""
    give_up_at = time.monotonic() + _SETTLE_S * FACTOR
    while True:
        folded = await _gathered(cluster, record_path)
        broken = {name: each for name, each in violations(folded).items() if each}
        if not broken:
            return
        assert time.monotonic() < give_up_at, broken
        await asyncio.sleep(1)


async def _gathered(cluster: LocalCluster, record_path: Path) -> Folded:
    history = from_record(read_record(record_path))
    images = ImageStore(cluster.settings["DARKROOM_IMAGES_URL"])
    database_url = cluster.settings["DARKROOM_DATABASE_URL"]
    async with cluster.nats.client() as client:
        await gather(history, client, images, database_url=database_url)
    return Folded(history)
