"""What the queues on JetStream are made of: their entries, and who reads them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime

from events.bus.bus import Bus
from events.bus.errors import NoAnswer
from events.bus.puller import Message, Puller, stored_at
from events.bus.streams import ConsumerSpec, job_id_in
from events.errors import LogUnavailable

STORE_TIMEOUT_S = 5.0
_CHECK_S = 15.0
"""How often a reader makes sure of its consumer."""


@dataclass(frozen=True, slots=True)
class JetStreamEntry:
    """A message of a work queue; its token is the subject that takes its acknowledgements."""

    job_id: str
    token: str
    _bus: Bus
    key: str = ""
    """On the callback queue; see `events.queue.CallbackEntry`."""

    @property
    def stored_at(self) -> datetime:
        return stored_at(self.token)

    async def ack(self) -> None:
        await self._bus.ack(self.token)

    async def nak(self) -> None:
        await self._bus.nak(self.token)

    async def renew(self) -> None:
        await self._bus.renew(self.token)

    async def hold(self, *, for_s: float) -> None:
        await self._bus.nak(self.token, after_s=for_s)


class JetStreamEntries:
    """What one durable consumer delivers."""

    def __init__(
        self, bus: Bus, puller: Puller, spec: ConsumerSpec, *, key_in: Callable[[str], str]
    ) -> None:
        """`key_in`: the key of an entry, by its subject."""
        self._bus = bus
        self._puller = puller
        self._spec = spec
        self._key_in = key_in
        self._check_at = time.monotonic() + _CHECK_S

    async def next(self, *, most: int, timeout_s: float) -> Sequence[JetStreamEntry]:
        await self._check()
        messages = await self._puller.follow(batch=most, timeout_s=timeout_s)
        return [self._entry(message) for message in messages]

    async def _check(self) -> None:
        """NATS tells nobody that another version has given the consumer other subjects.

        Raises LogUnavailable.
        """
        if time.monotonic() >= self._check_at:
            subjects = await self._bus.consumer_subjects(self._spec.stream, self._spec.name)
            if subjects != frozenset(self._spec.subjects):
                raise LogUnavailable("the consumer has other subjects by now")
            self._check_at = time.monotonic() + _CHECK_S

    def _entry(self, message: Message) -> JetStreamEntry:
        job_id, key = job_id_in(message.subject), self._key_in(message.subject)
        return JetStreamEntry(job_id, message.ack_subject, self._bus, key)


@asynccontextmanager
async def entries_of(
    bus: Bus, spec: ConsumerSpec, *, key_in: Callable[[str], str] = job_id_in
) -> AsyncGenerator[JetStreamEntries]:
    """Of a consumer that is there. What has come and was not taken is given back."""
    async with bus.puller(spec.stream, spec.name) as puller:
        try:
            yield JetStreamEntries(bus, puller, spec, key_in=key_in)
        finally:
            await bus.give_back(puller)


async def store_first(bus: Bus, subject: str, text: str) -> None:
    try:
        await bus.store_first(subject, text.encode(), timeout_s=STORE_TIMEOUT_S)
    except NoAnswer as error:
        raise LogUnavailable from error
