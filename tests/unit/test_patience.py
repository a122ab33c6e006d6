"""Limits of tests stretch with the machine."""

from __future__ import annotations

import pytest

from tests.support import polling
from tests.support.patience import FACTOR
from tests.support.polling import eventually


def test_no_limit_is_shorter_than_it_was_written() -> None:
    assert FACTOR >= 1


@pytest.mark.parametrize("limit_s", [400, pytest.param(1200, marks=pytest.mark.timeout(1200))])
def test_the_limit_of_a_test_is_stretched(request: pytest.FixtureRequest, limit_s: float) -> None:
    found = request.node.get_closest_marker("timeout")
    assert found.args == (pytest.approx(FACTOR * limit_s),)


async def test_a_slow_machine_has_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "FACTOR", 1e6)
    answers = iter([False] * 5 + [True])
    assert await eventually(lambda: next(answers), within_s=1e-6)
