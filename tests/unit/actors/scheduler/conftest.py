from __future__ import annotations

import pytest

from tests.support.scheduler.bench import Bench
from tests.support.scheduler.cluster import FakeCluster


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()
