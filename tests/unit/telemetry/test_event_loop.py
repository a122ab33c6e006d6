"""A blocked event loop is visible in its metric."""

from __future__ import annotations

import asyncio
import time

from prometheus_client import CollectorRegistry

from telemetry.event_loop import EventLoopMonitor
from tests.support.polling import eventually

NAME = "darkroom_event_loop_tick_cpu_seconds"
BLOCK_S = 0.12


async def test_a_block_is_observed_by_its_cpu_time() -> None:
    registry = CollectorRegistry()
    monitor = asyncio.create_task(EventLoopMonitor(registry).run())

    def count(bucket: str) -> float:
        return registry.get_sample_value(f"{NAME}_bucket", {"le": bucket}) or 0.0

    try:
        await eventually(lambda: count("+Inf"))
        assert count("+Inf") == count("0.1")
        blocked_until = time.thread_time() + BLOCK_S
        while time.thread_time() < blocked_until:
            pass
        await eventually(lambda: count("+Inf") - count("0.1") == 1)
    finally:
        monitor.cancel()
