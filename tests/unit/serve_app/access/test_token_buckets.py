from serve_app.access.token_buckets import TokenBuckets

SLOW = {"rate_per_s": 0.001, "burst": 2.0}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_nobody_is_forgotten_by_the_requests_of_others() -> None:
    """An empty bucket stays, however many names come: its owner has nothing to gain by them."""
    buckets = TokenBuckets(max_names=100, clock=Clock())
    while not buckets.take("alice", **SLOW):
        pass
    for number in range(1000):
        assert buckets.take(f"name {number}", **SLOW) == 0
    assert buckets.take("alice", **SLOW) > 0


def test_what_is_remembered_is_bounded() -> None:
    buckets = TokenBuckets(max_names=100, clock=Clock())
    for number in range(1000):
        buckets.take(f"name {number}", **SLOW)
        assert len(buckets._full_at) <= 100


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
