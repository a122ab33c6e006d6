from __future__ import annotations

import pytest

from tests.support.callbacks.bench import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()
