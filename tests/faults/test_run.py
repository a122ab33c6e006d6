"""Faults of many kinds in sequence under steady load; afterwards all invariants hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.run import run

pytestmark = pytest.mark.timeout(1200)


async def test_every_invariant_holds_after_faults_under_load(tmp_path: Path) -> None:
    outcome = await run(seed=7, duration_s=75, out=tmp_path)
    assert outcome.holds, outcome.text
