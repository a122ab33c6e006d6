"""The whole log, event by event, for a reader whose place JetStream keeps (a durable consumer)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from events.bus.bus import Bus
from events.bus.jetstream_log import event_in
from events.bus.puller import Message
from events.bus.streams import ConsumerSpec
from events.errors import LogUnavailable
from events.retry import keep_trying
from events.types import Event

_BATCH = 100
_PULL_TIMEOUT_S = 10.0
_SPACING_S = 0.01
"""Batches begin no closer together: events that come in a row are handled together, and one that
comes alone does not wait.
"""


class JetStreamConsumer:
    """See `events.log.EventConsumer`."""

    def __init__(self, bus: Bus, spec: ConsumerSpec) -> None:
        self._bus = bus
        self._spec = spec

    async def run(self, handle: Callable[[Event], Awaitable[None]]) -> None:
        await keep_trying(lambda: self._follow(handle), on=LogUnavailable)

    async def _follow(self, handle: Callable[[Event], Awaitable[None]]) -> None:
        await self._bus.ensure_consumer(self._spec)
        async with self._bus.puller(self._spec.stream, self._spec.name) as puller:
            while True:
                messages = await puller.follow(batch=_BATCH, timeout_s=_PULL_TIMEOUT_S)
                began = time.monotonic()
                await asyncio.gather(*(self._hand_over(each, handle) for each in messages))
                await asyncio.sleep(max(0.0, began + _SPACING_S - time.monotonic()))

    async def _hand_over(
        self, message: Message, handle: Callable[[Event], Awaitable[None]]
    ) -> None:
        await handle(event_in(message))
        # Not waited for: where it is lost the event comes again, as it may at any time.
        await self._bus.publish(message.ack_subject, b"+ACK")
