from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import pytest

from events import retry
from events.errors import LogFull, LogUnavailable
from events.retry import keep_trying
from tests.support.patience import FACTOR


class Flaky:
    """Raises what it is given, one after the other, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self._errors:
            raise self._errors.pop(0)
        return "answer"


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were asked for; none of them takes any time."""
    asked: list[float] = []

    async def no_sleep(delay_s: float) -> None:
        asked.append(delay_s)

    monkeypatch.setattr(asyncio, "sleep", no_sleep)
    return asked


async def test_a_call_is_repeated_until_it_answers(pauses: list[float]) -> None:
    call = Flaky(LogUnavailable(), LogFull(), LogUnavailable())
    assert await keep_trying(call, on=(LogUnavailable, LogFull)) == "answer"
    assert (call.calls, len(pauses)) == (4, 3)


async def test_another_error_is_raised_at_once(pauses: list[float]) -> None:
    with pytest.raises(KeyError):
        await keep_trying(Flaky(KeyError("k")), on=LogUnavailable)
    assert pauses == []


async def test_pauses_double_up_to_their_cap_with_jitter(pauses: list[float]) -> None:
    call = Flaky(*(LogUnavailable() for _ in range(6)))
    await keep_trying(call, on=LogUnavailable, first_pause_s=1, longest_pause_s=8)
    assert len(set(pauses)) == 6
    for asked_s, full_s in zip(pauses, (1, 2, 4, 8, 8, 8), strict=True):
        assert full_s / 2 <= asked_s <= full_s


async def test_a_call_that_worked_for_a_while_begins_with_short_pauses(
    pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 0.1, 1.0, 1.1, 2.0, 99.0, 100.0, 100.0])
    monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    call = Flaky(LogUnavailable(), LogUnavailable(), LogUnavailable())
    await keep_trying(call, on=LogUnavailable, first_pause_s=1, longest_pause_s=8)
    assert pauses[1] >= 1 >= pauses[2]


async def test_a_failure_is_logged_with_its_fields(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        error = LogUnavailable("away")
        error.__cause__ = OSError("no route to host")
        await keep_trying(Flaky(error), on=LogUnavailable, fields={"action": "route"})
        await keep_trying(Flaky(LogUnavailable("away")), on=LogUnavailable)
    [record] = caplog.records
    said = vars(record)
    assert (said["action"], said["error"]) == ("route", "away")
    assert said["cause"] == "OSError('no route to host')"


async def test_a_call_that_is_cancelled_is_not_repeated(pauses: list[float]) -> None:
    call = Flaky(LogUnavailable())

    async def cancelled() -> str:
        await call()
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await keep_trying(cancelled, on=Exception)
    assert (call.calls, len(pauses)) == (2, 1)


async def test_a_pause_can_be_cancelled() -> None:
    trying = asyncio.create_task(
        keep_trying(Flaky(*[LogUnavailable()] * 9), on=LogUnavailable, first_pause_s=60)
    )
    done, _ = await asyncio.wait({trying}, timeout=0.01)
    assert not done
    trying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(trying, 5 * FACTOR)
