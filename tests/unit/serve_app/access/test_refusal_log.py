import asyncio

import pytest

from serve_app.access.refusal_log import RefusalLog
from tests.support.polling import eventually

PERIOD_S = 0.05


def log_of(lines: int) -> RefusalLog:
    return RefusalLog(lines_per_s=int(lines / PERIOD_S), period_s=PERIOD_S)


def counts(caplog: pytest.LogCaptureFixture) -> list[int]:
    return [vars(record)["count"] for record in caplog.records if "count" in vars(record)]


async def test_each_refusal_is_a_line(caplog: pytest.LogCaptureFixture) -> None:
    log = log_of(3)
    for number in range(3):
        log.note({"number": number})
    log.stop()
    assert [vars(record)["number"] for record in caplog.records] == [0, 1, 2]
    assert {vars(record)["action"] for record in caplog.records} == {"refuse_key"}


async def test_of_a_flood_the_first_are_lines_and_the_others_a_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = log_of(3)
    for number in range(5000):
        log.note({"number": number})
    assert len(caplog.records) == 3
    assert await eventually(lambda: counts(caplog)) == [4997]
    assert len(caplog.records) == 4


async def test_the_next_period_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    log = log_of(1)
    for _ in range(2):
        log.note({})
        log.note({})
        await asyncio.sleep(2 * PERIOD_S)
    assert counts(caplog) == [1, 1]
    assert len(caplog.records) == 4


async def test_a_flood_at_the_end_is_told_too(caplog: pytest.LogCaptureFixture) -> None:
    log = log_of(1)
    for _ in range(7):
        log.note({})
    log.stop()
    assert counts(caplog) == [6]


async def test_zero_is_any_number_of_lines(caplog: pytest.LogCaptureFixture) -> None:
    log = log_of(0)
    for _ in range(500):
        log.note({})
    log.stop()
    assert len(caplog.records) == 500
