"""AbandonedWorkers: those that no dispatcher asks for any more, until they are gone.

Workers outlive their dispatcher, so that its successor finds them. Where none comes, as after the
end of the application, nobody else would give their places back, and each keeps a node.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from actors.dispatch.cluster import ActorUnavailable, Cluster
from actors.dispatch.names import ALL_WORKERS

logger = logging.getLogger(__name__)

_LOG = {"action": "remove_abandoned"}
_LONGEST_PAUSE_S = 5.0


class AbandonedWorkers:
    def __init__(
        self, cluster: Cluster, *, kept_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`cluster`: of any endpoint. `kept_s`: how long workers stay without a dispatcher."""
        self._cluster = cluster
        self._kept_s = kept_s
        self._clock = clock
        self._kept_until = clock() + kept_s

    def keep(self) -> None:
        """A dispatcher is there. May be called in any thread."""
        self._kept_until = self._clock() + self._kept_s

    async def run(self) -> None:
        """Returns once there is neither a dispatcher nor a worker."""
        while True:
            if await self.sweep():
                return
            await asyncio.sleep(min(self._kept_s / 4, _LONGEST_PAUSE_S))

    async def sweep(self) -> bool:
        """Remove those that run no job, if all are abandoned; True once none is left."""
        if self._is_kept():
            return False
        began = self._clock()
        try:
            workers = await self._cluster.workers(ALL_WORKERS)
            if self._clock() - began > self._kept_s / 4:
                self.keep()  # without a cluster that answers no dispatcher could come
            left = [worker for worker in workers if not await self._remove(worker)]
        except ActorUnavailable as error:
            logger.warning("workers not looked at", extra=_LOG | {"error": str(error)})
            self.keep()
            return False
        return not left and not self._is_kept()

    def _is_kept(self) -> bool:
        return self._clock() < self._kept_until

    async def _remove(self, worker: str) -> bool:
        """Whether it is gone. A dispatcher may have come meanwhile, and given it a job."""
        if self._is_kept() or not await self._cluster.is_idle(worker) or self._is_kept():
            return False
        await self._cluster.remove(worker)
        logger.warning("worker was abandoned", extra=_LOG | {"worker": worker})
        return True
