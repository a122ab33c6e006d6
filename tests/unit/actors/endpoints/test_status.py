"""What the dispatcher tells of an endpoint."""

from __future__ import annotations

from tests.support.dispatch import Bench
from tests.support.polling import eventually


async def test_it_tells_workers_what_waits_longest_and_the_pace() -> None:
    bench = Bench()
    async with bench.dispatching(slots=1) as dispatcher:
        await eventually(lambda: bench.cluster.actors)
        first = await bench.submit(lane=3)
        await bench.running(first)
        told = await dispatcher.status.tell()
        (worker,) = told["workers"]
        assert worker == {
            "state": "ready",
            "is_current": True,
            "running": 1,
            "checkpoints": [],
            "trouble": None,
        }
        assert told["oldest_waiting_s"] is None
        assert told["rate_per_s"] is None
        second = await bench.submit(lane=4)
        assert (await dispatcher.status.tell())["oldest_waiting_s"] >= 0
        await bench.finish(first)
        await bench.running(second)
        assert (await dispatcher.status.tell())["rate_per_s"] == 1.0
