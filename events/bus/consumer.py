"""The whole log, event by event, for a reader whose place JetStream keeps (a durable consumer)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from events.bus.bus import Bus
from events.bus.jetstream_log import event_in
from events.bus.puller import Message
from events.bus.streams import ConsumerSpec, router_consumer
from events.errors import LogUnavailable
from events.retry import keep_trying
from events.streams.log_streams import LogStream
from events.types import Event

_ONE = LogStream()
_BATCH = 100
_PULL_TIMEOUT_S = 10.0
_SPACING_S = 0.01
"""Batches begin no closer together: events that come in a row are handled together, and one that
comes alone does not wait.
"""


class JetStreamConsumer:
    """See `events.log.EventConsumer`."""

    def __init__(self, bus: Bus, spec: ConsumerSpec, *, numbers: LogStream = _ONE) -> None:
        """`numbers`: how the positions of the stream's messages follow from their sequences."""
        self._bus = bus
        self._spec = spec
        self._numbers = numbers
        self._in_hand: set[str] = set()
        """Ack subjects of the events that are being handled."""

    async def run(self, handle: Callable[[Event], Awaitable[None]]) -> None:
        await keep_trying(lambda: self._follow(handle), on=LogUnavailable)

    async def _follow(self, handle: Callable[[Event], Awaitable[None]]) -> None:
        await self._bus.ensure_consumer(self._spec)
        async with self._bus.puller(self._spec.stream, self._spec.name) as puller:
            try:
                while True:
                    messages = await puller.follow(batch=_BATCH, timeout_s=_PULL_TIMEOUT_S)
                    began = time.monotonic()
                    await asyncio.gather(*(self._hand_over(each, handle) for each in messages))
                    await asyncio.sleep(max(0.0, began + _SPACING_S - time.monotonic()))
            finally:
                # Whoever follows next has at once what was not handled.
                in_hand, self._in_hand = self._in_hand, set()
                await self._bus.give_back(puller, in_hand=in_hand)

    async def _hand_over(
        self, message: Message, handle: Callable[[Event], Awaitable[None]]
    ) -> None:
        self._in_hand.add(message.ack_subject)
        await handle(event_in(message, self._numbers))
        # Not waited for: where it is lost the event comes again, as it may at any time.
        await self._bus.publish(message.ack_subject, b"+ACK")
        self._in_hand.discard(message.ack_subject)


class JobEvents:
    """The whole log, whose streams are read beside each other; see `events.log.WholeConsumer`."""

    def __init__(self, bus: Bus) -> None:
        self.parts: Sequence[JetStreamConsumer] = [
            JetStreamConsumer(bus, router_consumer(stream), numbers=stream)
            for stream in bus.log_streams.all()
        ]

    async def run(self, handle: Callable[[Event], Awaitable[None]]) -> None:
        async with asyncio.TaskGroup() as group:
            for consumer in self.parts:
                group.create_task(consumer.run(handle))
