"""How many rows one device call may have, from the memory that earlier calls took."""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

T = TypeVar("T")

_log = logging.getLogger(__name__)
_REMEMBERED_KEYS = 512
_CALLS_TO_GROW = 100
_ROWS_OF_A_JOB = 2
"""Of a UNet call: an image with guidance."""
_FEWEST_JOBS = 4
"""Where calls have room for fewer, so many take turns: a long job keeps no short one waiting."""


def jobs_in(rows: int) -> int:
    """How many jobs are to run at once where a UNet call has so many rows.

    They meet in one call. More of them would only make each other late.
    """
    return max(_FEWEST_JOBS, rows // _ROWS_OF_A_JOB)


class MemoryProbe(Protocol):
    """Measures the memory of a device."""

    def available_bytes(self) -> int:
        """How much further calls may take, including what earlier calls gave back."""

    def start(self) -> None:
        """Note how much is in use now."""

    def peak_growth_bytes(self) -> int:
        """How much more than at `start` was in use at the highest point since then."""


@dataclass(slots=True)
class _Measurements:
    row_bytes: float = 0.0
    most_rows: int = 0
    """The rows of the largest call that was measured."""
    cap: int | None = None
    """The row limit since memory ran out; None: it never did."""
    full_calls: int = 0
    """How many calls have had so many rows since the limit was set."""
    seen_rows: set[int] = field(default_factory=set)
    """The numbers of rows that calls have had."""


class BatchLimits:
    """Row limits by the kind of call. The first call of a kind has one request, the next as many
    rows as fit into memory, up to `row_limit`.

    Only `share` of the available memory is used, because the bytes per row may vary. Where memory
    ran out, the limit is halved. It grows again row by row, for others may have taken the memory.
    """

    def __init__(
        self, row_limit: int, probe: MemoryProbe | None = None, *, share: float = 0.8
    ) -> None:
        self._row_limit = row_limit
        self._probe = probe
        self._share = share
        self._measurements: OrderedDict[Hashable, _Measurements] = OrderedDict()

    def max_rows(self, key: Hashable, wanted: float = math.inf) -> int:
        """How many rows a call of this kind may have.

        Where so many are `wanted` as a call has had before, the memory is not looked at.
        """
        measured = self._measurements.get(key)
        if self._probe is None:
            return self._row_limit if measured is None or measured.cap is None else measured.cap
        if measured is None or not measured.most_rows:
            return 1
        limit = self._row_limit if measured.cap is None else measured.cap
        if min(wanted, limit) <= measured.most_rows or not measured.row_bytes:
            return limit
        return self.fitting_rows(key)

    def fitting_rows(self, key: Hashable) -> int:
        """How many rows of this kind fit beside what is in memory now, as far as was measured.

        Any thread may ask.
        """
        measured = self._measurements.get(key)
        if measured is None:
            return self._row_limit
        limit = self._row_limit if measured.cap is None else measured.cap
        if self._probe is None or not measured.row_bytes:
            return limit
        available_bytes = _asked(self._probe.available_bytes) or 0
        fitting = int(available_bytes * self._share / measured.row_bytes)
        return min(limit, max(measured.most_rows, fitting))

    def is_first(self, key: Hashable, rows: int) -> bool:
        """Whether no call of this kind with so many rows is remembered."""
        measured = self._measurements.get(key)
        return measured is None or rows not in measured.seen_rows

    def halve(self, key: Hashable, rows: int) -> None:
        """Allow calls of this kind half of `rows` for now: with so many, memory ran out."""
        measured = self._of(key)
        measured.cap, measured.full_calls = max(1, rows // 2), 0
        measured.most_rows = min(measured.most_rows, measured.cap)

    @contextmanager
    def measured(self, key: Hashable, rows: int) -> Iterator[None]:
        """Notes the call that runs inside, and measures it if it is larger than all before it."""
        measured = self._of(key)
        measured.seen_rows.add(rows)
        with self._probed(measured, rows):
            yield
        if measured.cap is not None and rows >= measured.cap:
            self._grow(measured)

    def _grow(self, measured: _Measurements) -> None:
        """Allow one more row after many calls with as many as are allowed."""
        measured.full_calls += 1
        if measured.full_calls >= _CALLS_TO_GROW and measured.cap is not None:
            cap = measured.cap + 1
            measured.cap, measured.full_calls = (cap if cap < self._row_limit else None), 0

    @contextmanager
    def _probed(self, measured: _Measurements, rows: int) -> Iterator[None]:
        if self._probe is None or rows <= measured.most_rows:
            yield
            return
        _asked(self._probe.start)
        yield
        grown_bytes = _asked(self._probe.peak_growth_bytes)
        if grown_bytes is not None:
            measured.row_bytes = max(measured.row_bytes, grown_bytes / rows)
            measured.most_rows = rows

    def _of(self, key: Hashable) -> _Measurements:
        measured = self._measurements.setdefault(key, _Measurements())
        self._measurements.move_to_end(key)
        if len(self._measurements) > _REMEMBERED_KEYS:
            self._measurements.popitem(last=False)
        return measured


def _asked(question: Callable[[], T]) -> T | None:
    """What a probe answers; None where it fails.

    A device that fails says so in its next call, too, and that one belongs to a run.
    """
    try:
        return question()
    except Exception:  # noqa: BLE001 - of the device, or of the machine
        _log.warning("memory was not measured", exc_info=True, extra={"action": "measure"})
        return None
