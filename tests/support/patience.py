"""How much slower than usual this machine is: limits of tests stretch by it.

And how much processor time something takes by itself, however busy the machine is.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable

_USUAL_S = 0.06
"""What `_work` takes where the limits were chosen, with a core for itself."""
_MOST = 20.0
_TRIES = 3
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


def least_cpu_s(call: Callable[[], object]) -> float:
    """Of some calls, the least processor time of one, without collections of garbage.

    Those take a second where many tests have run before, and have nothing to do with the call.
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
