"""A metric of the CPU time for which functions block the event loop of a process."""

from __future__ import annotations

import asyncio
import time

from prometheus_client import CollectorRegistry, Histogram

_PERIOD_S = 0.02
_BUCKETS_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class EventLoopMonitor:
    """Observes the CPU time that the thread of the event loop uses between two ticks.

    A function that computes for a time blocks the loop, and this time counts for one tick. Unlike
    the delay of a tick, the CPU time does not grow if other processes use the CPU.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._cpu = Histogram(
            "darkroom_event_loop_tick_cpu_seconds",
            "CPU time of the event loop's thread between two ticks, which are 20 ms apart on an "
            "idle loop.",
            registry=registry,
            buckets=_BUCKETS_S,
        )

    async def run(self) -> None:
        """Observe one tick after another until the task is cancelled."""
        while True:
            began_s = time.thread_time()
            await asyncio.sleep(_PERIOD_S)
            self._cpu.observe(time.thread_time() - began_s)
