"""How much slower than usual this machine is: limits of tests stretch by it."""

from __future__ import annotations

import os
import time

_USUAL_S = 0.06
"""What `_work` takes where the limits were chosen, with a core for itself."""
_MOST = 20.0
_VARIABLE = "TESTS_PATIENCE"
"""Set by the first process for those that it starts, or by hand."""


def _work() -> None:
    total = 0
    for number in range(1_000_000):
        total += number % 7
    words = {str(number): number for number in range(100_000)}
    assert total > len(words)


def _measured() -> float:
    began = time.perf_counter()
    _work()
    return min(_MOST, max(1.0, (time.perf_counter() - began) / _USUAL_S))


FACTOR = float(os.environ.setdefault(_VARIABLE, f"{_measured():.2f}"))
