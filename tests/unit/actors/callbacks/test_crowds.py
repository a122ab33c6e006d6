"""10,000 callbacks to one slow receiver: what their waiting costs the role and other receivers."""

from __future__ import annotations

import asyncio

from actors.callbacks.breaker import BreakerLimits
from actors.callbacks.hosts import Hosts
from settings.callbacks import CallbackSettings
from tests.support.callbacks.crowd import Crowd, run_in_virtual_time

CALLBACKS = 10_000
SETTINGS = CallbackSettings()
ALL_SEEN_S = 50.0
"""By then each has been handled once."""
END_S = 250.0


def new_hosts() -> Hosts:
    return Hosts(
        at_once=SETTINGS.per_host,
        most_inside=SETTINGS.in_flight // 2,
        breaker=BreakerLimits.of(SETTINGS),
        clock=asyncio.get_running_loop().time,
    )


async def crowd_of(slow_s: float) -> Crowd:
    crowd = Crowd(new_hosts(), {"slow": slow_s, "other": 0.02})
    for number in range(CALLBACKS):
        crowd.add(f"slow-{number}", "slow")
    return crowd


def within(times: list[float], begin_s: float, end_s: float) -> int:
    return sum(begin_s < time <= end_s for time in times)


def test_they_wake_up_as_often_as_the_receiver_takes_them_and_no_other_waits() -> None:
    async def run() -> Crowd:
        crowd = await crowd_of(1.0)
        loop = asyncio.get_running_loop()
        for second in range(int(ALL_SEEN_S), int(END_S)):
            loop.call_at(second, crowd.add, f"other-{second}", "other")
        await crowd.run(END_S)
        return crowd

    crowd = run_in_virtual_time(run())
    seconds = END_S - ALL_SEEN_S
    assert within(crowd.woken, ALL_SEEN_S, END_S) / seconds <= 2 * SETTINGS.per_host + 10
    assert within(crowd.delivered, ALL_SEEN_S, END_S) / seconds >= 0.95 * (SETTINGS.per_host + 1)
    others_s = [delay_s for callback, delay_s in crowd.delays_s.items() if "other" in callback]
    assert len(others_s) >= seconds - 1
    assert max(others_s) < 0.2


def test_a_receiver_that_becomes_fast_gets_them_as_fast_as_it_takes_them() -> None:
    async def run() -> Crowd:
        crowd = await crowd_of(1.0)
        loop = asyncio.get_running_loop()
        loop.call_at(ALL_SEEN_S, setattr, crowd, "answers_s", {"slow": 0.02})
        await crowd.run(END_S)
        return crowd

    crowd = run_in_virtual_time(run())
    assert len(crowd.delays_s) == CALLBACKS


def test_a_new_process_gives_a_receiver_those_in_line_as_fast_as_it_takes_them() -> None:
    async def run() -> Crowd:
        crowd = await crowd_of(1.0)
        await crowd.run(ALL_SEEN_S)
        crowd.hosts, crowd.answers_s = new_hosts(), {"slow": 0.02}
        await crowd.run(END_S)
        return crowd

    crowd = run_in_virtual_time(run())
    assert len(crowd.delays_s) == CALLBACKS
    rate = SETTINGS.per_host / 0.02
    assert max(crowd.delivered) < ALL_SEEN_S + 1.5 * CALLBACKS / rate
