"""How much slower than usual this machine is; time limits of tests are multiplied by it.

It also measures the CPU time of a call, however busy the machine is.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable

_USUAL_S = 0.06
"""The seconds of `_work` on a free core where the limits were chosen."""
_MOST = 20.0
_TRIES = 3
_VARIABLE = "TESTS_PATIENCE"
"""Set by the first process for its children, or by hand."""


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


def least_cpu_s(call: Callable[[], object]) -> float:
    """Return the least CPU time of several calls, without garbage collections, which take a second
    if many tests have run before.
    """
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        return min(_cpu_s(call) for _ in range(_TRIES))
    finally:
        if is_collecting:
            gc.enable()


def _cpu_s(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began
