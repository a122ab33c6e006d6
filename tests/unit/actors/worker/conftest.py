from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.runners import RunnersBench


@pytest.fixture
def bench(tmp_path: Path) -> RunnersBench:
    return RunnersBench(tmp_path)
