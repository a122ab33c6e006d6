"""How often keys and owners may ask, and what the headers of each answer say of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.log import utc_now
from events.store.records import ApiKey, KeyLimits, Scope
from serve_app.access.api_keys import mint
from serve_app.access.rates import Rates, TokenBuckets
from serve_app.refusals import Limited, RateExceeded
from settings.keys import OwnerSettings
from tests.support.clock import Clock
from tests.support.edge import Client, Edge

SLOW = {"rate_per_s": 0.001, "burst": 2.0}


def key(owner: str = "alice", **limits: float) -> ApiKey:
    chosen = KeyLimits(**limits)  # type: ignore[arg-type]  # the tests name them rightly
    return mint(owner, "test", [Scope.READ], created_at=utc_now(), limits=chosen)[1]


def new_rates(clock: Clock, *, replicas: int = 1, **owners: float) -> Rates:
    """Of owners without a limit, unless it is given."""
    settings = OwnerSettings(**({"rate_per_s": 0} | owners))  # type: ignore[arg-type]  # as above
    return Rates(settings, replicas=replicas, clock=clock)


def taken_at_once(rates: Rates, key: ApiKey) -> tuple[int, int]:
    """How many, and the Retry-After of the first refusal."""
    for number in range(10_000):
        try:
            rates.take(key)
        except RateExceeded as refusal:
            return number, refusal.retry_after_s
    pytest.fail("never refused")


def test_a_burst_then_the_rate() -> None:
    clock = Clock()
    rates, mine = new_rates(clock), key(rate_per_s=2, burst=5)
    assert taken_at_once(rates, mine) == (5, 1)
    clock.now += 1.5
    assert taken_at_once(rates, mine) == (3, 1)
    clock.now += 3600
    assert taken_at_once(rates, mine) == (5, 1)


@given(
    rate=st.floats(0.001, 1000),
    burst=st.integers(1, 50),
    replicas=st.integers(1, 8),
)
def test_after_retry_after_it_works_and_a_second_before_it_does_not(
    rate: float, burst: int, replicas: int
) -> None:
    clock = Clock()
    rates, mine = new_rates(clock, replicas=replicas), key(rate_per_s=rate, burst=burst)
    _, wait_s = taken_at_once(rates, mine)
    began = clock.now
    clock.now = began + wait_s - 1 - 1e-5
    with pytest.raises(RateExceeded):
        rates.take(mine)
    clock.now = began + wait_s
    rates.take(mine)


@pytest.mark.parametrize(
    ("of_owner", "of_key"),
    [({}, {"rate_per_s": 1, "burst": 1}), ({"rate_per_s": 1, "burst": 1}, SLOW)],
    ids=["by the key", "by the owner"],
)
def test_refusals_cost_nothing(of_owner: dict[str, float], of_key: dict[str, float]) -> None:
    clock = Clock()
    rates, mine = new_rates(clock, **of_owner), key(**of_key)
    rates.take(mine)
    for _ in range(100):
        with pytest.raises(RateExceeded):
            rates.take(mine)
    clock.now += 1
    rates.take(mine)


def test_keys_do_not_share_a_bucket_and_one_without_a_rate_has_no_limit() -> None:
    rates = new_rates(Clock())
    for _ in range(3):
        assert taken_at_once(rates, key(rate_per_s=1, burst=2))[0] == 2
    for unlimited in (key(), key(rate_per_s=0, burst=1)):
        for _ in range(1000):
            rates.take(unlimited)


def test_a_limit_that_changes_holds_at_once() -> None:
    rates = new_rates(Clock())
    fast = key(rate_per_s=10, burst=10)
    for _ in range(4):
        rates.take(fast)
    with pytest.raises(RateExceeded):
        rates.take(replace(fast, limits=KeyLimits(1, 1)))


@pytest.mark.parametrize("replicas", [2, 4])
def test_all_replicas_together_grant_the_rate(replicas: int) -> None:
    clock = Clock()
    mine = key(rate_per_s=8, burst=8)
    every = [new_rates(clock, replicas=replicas) for _ in range(replicas)]
    assert sum(taken_at_once(each, mine)[0] for each in every) == 8
    clock.now += 10
    total = 0
    for _ in range(100):
        clock.now += 0.1
        for each in every:
            try:
                each.take(mine)
            except RateExceeded:
                continue
            total += 1
    assert total == pytest.approx(8 + 8 * 10, abs=replicas)


def test_a_burst_smaller_than_the_replicas_is_one_for_each() -> None:
    every = [new_rates(Clock(), replicas=3) for _ in range(3)]
    mine = key(rate_per_s=1, burst=2)
    assert [taken_at_once(each, mine)[0] for each in every] == [1, 1, 1]


def test_an_owner_has_one_bucket_for_all_keys() -> None:
    clock = Clock()
    rates = new_rates(clock, rate_per_s=2, burst=5)
    one, two, others = key(), key(), key("bob")
    for _ in range(4):
        rates.take(one)
    assert taken_at_once(rates, two) == (1, 1)
    with pytest.raises(RateExceeded, match=f"^{Limited.OWNER} may send 2 requests a second"):
        rates.take(one)
    assert taken_at_once(rates, others) == (5, 1)
    clock.now += 1.5
    assert taken_at_once(rates, one) == (3, 1)


def test_a_keys_own_rate_holds_beside_that_of_its_owner() -> None:
    rates = new_rates(Clock(), rate_per_s=1, burst=4)
    slow, fast = key(rate_per_s=1, burst=2), key(rate_per_s=100, burst=100)
    assert taken_at_once(rates, slow)[0] == 2
    with pytest.raises(RateExceeded, match=f"^{Limited.KEY} may"):
        rates.take(slow)
    assert taken_at_once(rates, fast)[0] == 2  # what the key was refused, its owner still has
    with pytest.raises(RateExceeded, match=f"^{Limited.OWNER} may"):
        rates.take(fast)


def left(rates: Rates, **limits: float) -> list[tuple[int, int, int, int]]:
    mine = key(**limits)
    rates.take(mine)
    return [(s.quota, s.window_s, s.left, s.whole_in_s) for s in rates.standings(mine)]


def test_what_is_left_of_key_and_owner() -> None:
    rates = new_rates(Clock(), rate_per_s=2, burst=7)
    assert left(rates, rate_per_s=0.5, burst=5) == [(5, 10, 4, 2), (7, 4, 6, 1)]
    assert left(rates) == [(7, 4, 5, 1)]
    assert left(new_rates(Clock())) == []


def test_a_replica_takes_the_others_to_be_used_like_itself() -> None:
    assert left(new_rates(Clock(), replicas=2, rate_per_s=2, burst=8)) == [(8, 4, 6, 1)]
    assert left(new_rates(Clock(), replicas=2, rate_per_s=2, burst=1)) == [(1, 1, 0, 1)]


def test_a_rate_that_is_next_to_nothing_has_a_time_all_the_same() -> None:
    assert left(new_rates(Clock(), rate_per_s=5e-324, burst=2))[0][1] == 10**9


def test_what_is_remembered_is_bounded_and_nobody_is_forgotten_by_the_requests_of_others() -> None:
    """An empty bucket stays, however many names come: its owner has nothing to gain by them."""
    buckets = TokenBuckets(max_names=100, clock=Clock())
    while not buckets.take("alice", **SLOW):
        pass
    for number in range(1000):
        assert buckets.take(f"name {number}", **SLOW) == 0
        assert len(buckets._full_at) <= 100
    assert buckets.take("alice", **SLOW) > 0


def test_full_buckets_go_first() -> None:
    clock = Clock()
    buckets = TokenBuckets(max_names=100, clock=clock)
    for number in range(50):
        buckets.take(f"fast {number}", rate_per_s=10, burst=10)
    for number in range(50):
        buckets.take(f"slow {number}", **SLOW)
    clock.now += 60
    buckets.take("one more", **SLOW)
    assert sum(name.startswith("slow") for name in buckets._full_at) == 50


def test_looking_takes_nothing() -> None:
    buckets = TokenBuckets(clock=Clock())
    for _ in range(5):
        assert buckets.wait_s("alice", rate_per_s=1, burst=1) == 0
    assert buckets.take("alice", rate_per_s=1, burst=1) == 0
    assert buckets.wait_s("alice", rate_per_s=1, burst=1) == 1


@pytest.mark.edge(http_replicas=1, owner_rate_per_s=0)
async def test_each_answer_says_what_is_left(edge: Edge) -> None:
    async with await edge.client(rate_per_s=0.01, burst=2) as client:
        answers = [await client.get("/v1/usage") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert {answer.headers["RateLimit-Policy"] for answer in answers} == {'"key";q=2;w=200'}
    found = [answer.headers["RateLimit"].rpartition(";t=")[0] for answer in answers]
    assert found == ['"key";r=1', '"key";r=0', '"key";r=0']


async def test_an_answer_without_a_key_or_without_limits_has_none(anyone: Client) -> None:
    for path in ("/health/live", "/v1/usage"):
        assert "RateLimit" not in (await anyone.get(path)).headers
