from actors.callbacks.breaker import Breaker, BreakerLimits
from settings.callbacks import CallbackSettings

LIMITS = BreakerLimits(failures=3, open_s=10, longest_open_s=40, jitter=0)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def opened(clock: Clock, limits: BreakerLimits = LIMITS) -> Breaker:
    breaker = Breaker(limits, clock=clock)
    for _ in range(limits.failures):
        breaker.end(False, probe=breaker.begin())
    assert not breaker.is_closed
    return breaker


def test_it_opens_after_as_many_failures_in_a_row_as_its_limit() -> None:
    breaker = Breaker(LIMITS, clock=Clock())
    for answered in (False, False, True, False, None, False):
        assert not breaker.withheld_s()
        breaker.end(answered, probe=breaker.begin())
    assert breaker.is_closed
    breaker.end(False, probe=breaker.begin())
    assert breaker.withheld_s() == 10


def test_when_its_time_is_over_one_probe_is_made_alone() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now = 9.9
    assert breaker.withheld_s() > 0
    clock.now = 10
    assert breaker.withheld_s() == 0
    assert breaker.begin()
    assert breaker.withheld_s() > 0
    breaker.end(True, probe=True)
    assert breaker.is_closed
    assert breaker.withheld_s() == 0


def test_a_probe_that_came_to_nothing_leaves_room_for_another() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now = 10
    breaker.end(None, probe=breaker.begin())
    assert breaker.withheld_s() == 0
    assert not breaker.is_closed


def test_each_probe_that_fails_doubles_the_time_up_to_the_limit() -> None:
    clock = Clock()
    breaker = opened(clock)
    times_s = []
    for _ in range(4):
        clock.now += breaker.withheld_s()
        breaker.end(False, probe=breaker.begin())
        times_s.append(breaker.withheld_s())
    assert times_s == [20, 40, 40, 40]
    clock.now += 40
    breaker.end(True, probe=breaker.begin())
    for _ in range(3):
        breaker.end(False, probe=breaker.begin())
    assert breaker.withheld_s() == 10, "an answer has reset the time too"


def test_a_try_that_began_before_it_opened_does_not_lengthen_the_time() -> None:
    breaker = opened(Clock())
    breaker.end(False, probe=False)
    assert breaker.withheld_s() == 10
    breaker.end(True, probe=False)
    assert breaker.is_closed


def test_times_are_spread_but_bounded() -> None:
    limits = BreakerLimits(failures=3, open_s=10, longest_open_s=40, jitter=0.2)
    clock = Clock()
    times_s = [opened(clock, limits).withheld_s() for _ in range(200)]
    assert 8 <= min(times_s) < max(times_s) <= 14
    assert len(set(times_s)) > 100


def test_the_settings_are_its_limits() -> None:
    settings = CallbackSettings(
        breaker_failures=7,
        breaker_open_s=8,
        breaker_longest_s=9,
        jitter=0.1,
    )
    assert BreakerLimits.of(settings) == BreakerLimits(7, 8, 9, 0.1)
