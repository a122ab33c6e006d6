"""Appends whose answers are lost, on a real nats-server behind a bus that loses them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from events.bus.bus import Bus
from events.bus.jetstream_log import JetStreamLog
from events.bus.nats_errors import NoAnswer, WrongLastSequence
from events.bus.puller import Message
from events.errors import LogFull, LogUnavailable, OutcomeUnknown, ReadTimeout
from events.log import Appended
from local.nats_server import NatsServer
from tests.support.bus import started
from tests.support.events import new_event


class LossyBus(Bus):
    """Its next stores and reads fail with the errors that are listed; NoAnswer stores first."""

    store_faults: list[Exception]
    read_faults: list[Exception]

    async def store(self, subject: str, data: bytes, **options: Any) -> int:
        fault = self.store_faults.pop(0) if self.store_faults else None
        if fault is None or isinstance(fault, NoAnswer):
            position = await super().store(subject, data, **options)
            if fault is None:
                return position
        raise fault

    async def last(self, stream: str, subject: str) -> Message | None:
        if self.read_faults:
            raise self.read_faults.pop(0)
        return await super().last(stream, subject)


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[LossyBus]:
    bus = LossyBus(nats_server.url, name="test")
    bus.store_faults, bus.read_faults = [], []
    async with started(bus):
        yield bus


@pytest.fixture
def log(bus: LossyBus) -> JetStreamLog:
    """A log that waits longer than a busy machine needs."""
    return JetStreamLog(bus, append_timeout_s=120.0, try_timeout_s=60.0)


@pytest.fixture
def hasty_log(bus: LossyBus) -> JetStreamLog:
    """A log that soon gives up."""
    return JetStreamLog(bus, append_timeout_s=1.0, try_timeout_s=0.5)


@pytest.mark.parametrize("then", [LogFull, LogUnavailable, NoAnswer])
async def test_an_answer_that_was_lost_is_asked_for_again(
    bus: LossyBus, log: JetStreamLog, then: Callable[[], Exception]
) -> None:
    new = new_event()
    bus.store_faults = [NoAnswer(), then(), then()]
    outcome = await log.append(new, expected=0)
    assert isinstance(outcome, Appended)
    assert await log.read(new.job_id) == [outcome.event]


@pytest.mark.parametrize("then", [LogUnavailable, ReadTimeout])
async def test_a_read_that_fails_after_a_lost_answer_is_another_round(
    bus: LossyBus, log: JetStreamLog, then: Callable[[], Exception]
) -> None:
    new = new_event()
    bus.store_faults = [NoAnswer(), WrongLastSequence(), WrongLastSequence()]
    bus.read_faults = [then()]
    outcome = await log.append(new, expected=0)
    assert isinstance(outcome, Appended)
    assert await log.read(new.job_id) == [outcome.event]


@pytest.mark.parametrize("then", [LogFull, LogUnavailable])
async def test_what_may_be_stored_is_never_said_to_be_refused(
    bus: LossyBus, log: JetStreamLog, hasty_log: JetStreamLog, then: Callable[[], Exception]
) -> None:
    new = new_event()
    bus.store_faults = [NoAnswer(), *(then() for _ in range(1000))]
    with pytest.raises(OutcomeUnknown):
        await hasty_log.append(new, expected=0)
    assert len(await log.read(new.job_id)) == 1


async def test_a_read_that_fails_to_the_end_leaves_the_outcome_unknown(
    bus: LossyBus, hasty_log: JetStreamLog
) -> None:
    bus.store_faults = [NoAnswer(), *(WrongLastSequence() for _ in range(1000))]
    bus.read_faults = [LogUnavailable() for _ in range(1000)]
    with pytest.raises(OutcomeUnknown):
        await hasty_log.append(new_event(), expected=0)


@pytest.mark.parametrize("refusal", [LogFull, LogUnavailable])
async def test_what_was_refused_at_first_was_not_stored(
    bus: LossyBus, log: JetStreamLog, refusal: type[Exception]
) -> None:
    new = new_event()
    bus.store_faults = [refusal()]
    with pytest.raises(refusal):
        await log.append(new, expected=0)
    assert await log.read(new.job_id) == []
