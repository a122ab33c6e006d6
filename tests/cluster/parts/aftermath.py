"""What must hold of all jobs once callers have stopped: none is lost, blamed or ended twice."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from events.types import AttemptFailed, DispatchFailed
from storage.images import ImageStore
from tests.cluster.parts.callers import Callers
from tests.cluster.parts.local_cluster import LocalCluster
from tests.faults.checker.gather import gather
from tests.faults.checker.history import Folded, from_record
from tests.faults.checker.invariants import violations
from tests.faults.checker.record import read_record
from tests.support.patience import FACTOR

_SETTLE_S = 60.0


class Story:
    """What one disturbance did, line by line, with the seconds since it began."""

    def __init__(self, name: str) -> None:
        self._began = time.monotonic()
        self._lines = [f"-- {name}"]

    def say(self, text: str) -> None:
        self._lines.append(f"{time.monotonic() - self._began:6.1f} s  {text}")

    def __str__(self) -> str:
        return "\n".join(self._lines)


@asynccontextmanager
async def under_load(
    cluster: LocalCluster, callers: Callers, name: str, *, most_silent_s: float
) -> AsyncGenerator[Story]:
    """Jobs come all the while. At the end each has ended once, as itself, and callers had to wait
    for an answer no longer than that.
    """
    story = Story(name)
    callers.statuses.clear()
    try:
        async with callers.calling():
            yield story
            story.say("done")
        story.say("all jobs have ended")
        await _all_holds(cluster, callers.record.path, story)
    finally:
        answers = callers.probe.answers
        story.say(f"GET /health/ready: {answers}")
        statuses = ", ".join(f"{count} x {each}" for each, count in callers.statuses.items())
        story.say(f"POST generate: {statuses}")
        sys.stdout.write(f"\n{story}\n")
    assert answers.longest_s < most_silent_s * FACTOR, answers


async def _all_holds(cluster: LocalCluster, record_path: Path, story: Story) -> None:
    """Projection and callbacks have some time to come to their end."""
    give_up_at = time.monotonic() + _SETTLE_S * FACTOR
    while True:
        folded = await _gathered(cluster, record_path)
        broken = {name: each for name, each in violations(folded).items() if each}
        if not broken:
            break
        assert time.monotonic() < give_up_at, broken
        await asyncio.sleep(1)
    tried_again = Counter(
        type(event.data).__name__
        for events in folded.events.values()
        for event in events
        if isinstance(event.data, AttemptFailed | DispatchFailed)
    )
    story.say(f"{len(folded.jobs)} jobs so far hold; attempts that broke off: {dict(tried_again)}")


async def _gathered(cluster: LocalCluster, record_path: Path) -> Folded:
    history = from_record(read_record(record_path))
    images = ImageStore(cluster.settings["DARKROOM_IMAGES_URL"])
    database_url = cluster.settings["DARKROOM_DATABASE_URL"]
    async with cluster.nats.client() as client:
        await gather(history, client, images, database_url=database_url)
    return Folded(history)
