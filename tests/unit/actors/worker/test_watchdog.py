"""When the watchdog lets the engine's process end, and that it does."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import pytest

from actors.worker.watchdog import TimeLimits, Watchdog
from engine.activity import ActivityKind, ActivityMonitor

STEP_S, LOAD_S = 120.0, 600.0


@pytest.fixture
def monitor() -> ActivityMonitor:
    return ActivityMonitor()


@pytest.fixture
def put_off() -> list[float]:
    """By how much the end was put off, each time."""
    return []


@pytest.fixture
def watchdog(monitor: ActivityMonitor, put_off: list[float]) -> Watchdog:
    return Watchdog(lambda: monitor.now, TimeLimits(STEP_S, LOAD_S), exit_later=put_off.append)


@pytest.mark.parametrize(
    ("kind", "timeout_s"),
    [(ActivityKind.CALL, STEP_S), (ActivityKind.NODE, STEP_S), (ActivityKind.LOAD, LOAD_S)],
)
def test_each_kind_of_work_has_its_time(
    watchdog: Watchdog,
    monitor: ActivityMonitor,
    put_off: list[float],
    kind: ActivityKind,
    timeout_s: float,
) -> None:
    monitor.begin(kind, ())
    watchdog.check()
    watchdog.check()  # it does not move: the time runs
    assert put_off == [timeout_s]
    monitor.move()
    watchdog.check()
    assert put_off == [timeout_s, timeout_s]


def test_an_idle_engine_is_never_stuck_and_is_looked_at_more_often_than_its_time_runs(
    monitor: ActivityMonitor,
) -> None:
    looks = threading.Semaphore(0)
    limits = TimeLimits(step_s=0.2, load_s=60.0)

    def exit_later(timeout_s: float) -> None:
        assert timeout_s >= limits.step_s
        looks.release()

    Watchdog(lambda: monitor.now, limits, exit_later=exit_later, period_s=3600).start()
    for _ in range(3):
        assert looks.acquire(timeout=60)


def test_a_neighbours_long_load_is_no_hang(
    watchdog: Watchdog, monitor: ActivityMonitor, put_off: list[float]
) -> None:
    monitor.begin(ActivityKind.CALL, ())
    watchdog.check()
    monitor.begin(ActivityKind.LOAD, ())
    for _ in range(130):
        watchdog.check()
    assert put_off == [STEP_S, LOAD_S]


def test_where_the_device_thread_has_ended_the_process_ends(
    watchdog: Watchdog, monitor: ActivityMonitor, put_off: list[float]
) -> None:
    watchdog.check()
    monitor.end()
    for _ in range(3):
        watchdog.check()
    assert put_off == [STEP_S, 1.0]


def test_a_timer_that_cannot_be_set_is_set_later(monitor: ActivityMonitor) -> None:
    is_set = threading.Event()
    errors = [RuntimeError("can't start new thread")] * 2

    def exit_later(_: float) -> None:
        if errors:
            raise errors.pop()
        is_set.set()

    limits = TimeLimits(STEP_S, LOAD_S)
    Watchdog(lambda: monitor.now, limits, exit_later=exit_later, period_s=0.05).start()
    assert is_set.wait(timeout=60)


PROGRAM = """
    import re, sys, time
    from actors.worker.watchdog import TimeLimits, Watchdog
    from engine.activity import ActivityKind, ActivityMonitor
    monitor = ActivityMonitor()
    Watchdog(lambda: monitor.now, TimeLimits(step_s=2.0, load_s=60.0), period_s=0.05).start()
    for _ in range(30):
        monitor.begin(ActivityKind.CALL, ())
        time.sleep(0.1)
    print("it moved", flush=True)
    if sys.argv[1] == "waits":
        time.sleep(60)
    re.match("(a|a)*b", "a" * 64)  # never gives the interpreter free
"""


@pytest.mark.parametrize("how", ["waits", "holds the interpreter"])
def test_a_stuck_process_ends_and_prints_where(how: str) -> None:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), how]
    ended = subprocess.run(command, check=False, timeout=120, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (1, "it moved\n")
    assert 'File "<string>", line 1' in ended.stderr
