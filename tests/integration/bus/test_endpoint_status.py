"""What HTTP replicas ask of dispatchers, on a real nats-server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from events.bus.bus import Bus
from events.bus.dispatching.endpoint_status import answer_status, ask_status
from events.errors import JobDamaged, LogUnavailable
from tests.support.polling import eventually


async def test_whoever_dispatches_an_endpoint_answers(bus: Bus) -> None:
    async def mine(endpoint: str) -> Mapping[str, Any] | None:
        if endpoint == "troubled":
            raise LogUnavailable
        if endpoint == "broken":
            raise JobDamaged
        return {"workers": [], "rate_per_s": 0.5} if endpoint == "mine" else None

    async def nothing(_endpoint: str) -> None:
        return None

    assert await ask_status(bus, "mine") is None
    answering = [
        asyncio.create_task(answer_status(bus, status)) for status in (nothing, mine, nothing)
    ]
    try:
        answer = await eventually(lambda: ask_status(bus, "mine"))
        assert answer == {"workers": [], "rate_per_s": 0.5}
        assert await ask_status(bus, "another") is None
        assert await ask_status(bus, "troubled") is None
        assert await ask_status(bus, "broken") is None
        assert await ask_status(bus, "mine") == answer
    finally:
        for task in answering:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
