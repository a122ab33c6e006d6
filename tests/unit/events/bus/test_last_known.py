"""What the event log last said: asked for once, remembered while it does not answer."""

from __future__ import annotations

import asyncio

import pytest

from events.bus.health import LastKnown
from events.errors import LogUnavailable


class Log:
    """Answers with a number once a test lets it; counts how often it was asked."""

    def __init__(self) -> None:
        self.now = 0.0
        self.value = 0
        self.asked = 0
        self.is_away = False
        self.back_at = float("inf")
        self.answering = asyncio.Event()
        self.answering.set()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)
        self.now += seconds

    async def ask(self) -> int:
        self.asked += 1
        await self.answering.wait()
        if self.is_away and self.now < self.back_at:
            raise LogUnavailable
        return self.value


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def known(log: Log) -> LastKnown[int]:
    return LastKnown(log.ask, period_s=1, oldest_s=10, clock=lambda: log.now, sleep=log.sleep)


async def test_it_is_asked_for_once_in_a_period(log: Log, known: LastKnown[int]) -> None:
    log.value = 7
    assert [await known.get() for _ in range(100)] == [7] * 100
    assert log.asked == 1
    log.now, log.value = 1.0, 8
    assert await known.get() == 8


async def test_all_who_ask_at_once_wait_for_one_answer(log: Log, known: LastKnown[int]) -> None:
    log.value = 7
    log.answering.clear()
    asking = [asyncio.create_task(known.get()) for _ in range(100)]
    await asyncio.sleep(0)
    asking[0].cancel()
    log.answering.set()
    assert await asyncio.gather(*asking[1:]) == [7] * 99
    assert log.asked == 1


async def test_while_there_is_no_answer_the_last_one_counts(
    log: Log, known: LastKnown[int]
) -> None:
    log.value = 7
    await known.get()
    log.now, log.is_away = 10.0, True
    assert [await known.get() for _ in range(100)] == [7] * 100
    assert log.asked == 2  # a log that is away is not asked more often either


async def test_an_answer_that_is_too_old_is_none(log: Log, known: LastKnown[int]) -> None:
    await known.get()
    log.now, log.is_away = 3600.0, True
    with pytest.raises(LogUnavailable, match="does not report"):
        await known.get()
    assert log.now == 3602.0
    with pytest.raises(LogUnavailable):
        await known.get()
    assert log.now == 3602.0  # nobody else waits for what has been silent for long
    log.now, log.is_away, log.value = 3604.0, False, 9
    assert await known.get() == 9


async def test_one_question_without_an_answer_refuses_nobody(
    log: Log, known: LastKnown[int]
) -> None:
    log.is_away, log.back_at, log.value = True, 1.0, 7
    assert await known.get() == 7
    assert log.now == 1.0


async def test_a_log_that_never_answered_is_not_available(log: Log, known: LastKnown[int]) -> None:
    log.is_away = True
    with pytest.raises(LogUnavailable):
        await known.get()
    assert log.now == 2


async def test_the_last_answer_is_there_without_waiting(log: Log, known: LastKnown[int]) -> None:
    log.answering.clear()
    assert known.last() is None
    log.value = 7
    log.answering.set()
    assert (await known.get(), known.last(), log.asked) == (7, 7, 1)
    log.now, log.value = 1.0, 8
    assert known.last() == 7  # a request has begun
    assert (await known.get(), known.last(), log.asked) == (8, 8, 2)
