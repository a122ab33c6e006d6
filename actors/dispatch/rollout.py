"""The order in which the workers of a pool are replaced, once their endpoint has them made anew.

One at a time: another one is opened first, and when it is ready, one of the old ones gets no more
jobs and is closed once it runs none. Where the cluster has no room for one more, an old one goes
first. Old ones take jobs until then, so nothing stops where what is made now does not come up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from actors.dispatch.cluster import Cluster
from actors.dispatch.names import endpoint_prefix
from actors.dispatch.worker import Worker


class Step(StrEnum):
    OPEN = "open"
    """Open one more worker."""
    LEAVE = "leave"
    """Let an old one go."""
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Rollout:
    """The workers of a pool by how they are made."""

    old: Collection[Worker]
    """Made otherwise than one would be made now."""
    new: Collection[Worker]

    def step(self, wanted: int, *, room_wait_s: float) -> Step:
        """The next one, of as many workers as are `wanted` now.

        `room_wait_s`: how long one that is opened waits for room before an old one makes room.
        """
        if not self._staying or len(self._staying) < len(self.old):
            return Step.WAIT  # one is leaving already
        starting = [worker for worker in self.new if not worker.is_ready]
        if any(worker.startup.is_placed for worker in starting):
            return Step.WAIT
        if any(worker.startup.waits_for_room_s > room_wait_s for worker in starting):
            return Step.LEAVE
        if starting:
            return Step.WAIT
        return Step.OPEN if len(self.old) + len(self.new) <= wanted else Step.LEAVE

    @property
    def leaves_next(self) -> Worker:
        """The one whose end costs least."""
        return min(self._staying, key=end_costs)

    @property
    def _staying(self) -> list[Worker]:
        return [worker for worker in self.old if not worker.is_leaving]


def end_costs(worker: Worker) -> tuple[bool, bool]:
    """What the end of a worker costs: less where it runs nothing, and where it is not ready."""
    return worker.is_busy, worker.is_ready


class OtherReleases:
    """Workers of an endpoint that another program or other settings made: they go once what they
    run has ended.
    """

    def __init__(self, cluster: Cluster, endpoint_id: str) -> None:
        self._cluster = cluster
        self._prefix = endpoint_prefix(endpoint_id)
        self._workers: Collection[str] = ()

    def have(self, actor: str | None) -> bool:
        """Whether it is one of theirs that wrote under this name."""
        return actor is not None and any(actor.startswith(f"{each}:") for each in self._workers)

    async def look(self, ours: Iterable[str]) -> None:
        """Raises ActorUnavailable."""
        self._workers = set(await self._cluster.workers(self._prefix)) - set(ours)

    async def close(self, ours: Iterable[str]) -> None:
        """Those that run nothing. Raises ActorUnavailable."""
        await self.look(ours)
        for worker in sorted(self._workers):
            if await self._cluster.is_idle(worker):
                await self._cluster.remove(worker)
