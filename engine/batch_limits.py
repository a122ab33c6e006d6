"""Limits the number of rows of a device call, from the memory that earlier calls took."""

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


class MemoryProbe(Protocol):
    """Measures the memory of a device."""

    def available_bytes(self) -> int:
        """Return the memory that further calls may take. Freed memory is included."""

    def start(self) -> None:
        """Note the amount of memory that is in use now."""

    def peak_growth_bytes(self) -> int:
        """Return the largest growth of the memory in use since `start`."""


@dataclass(slots=True)
class _Measurements:
    row_bytes: float = 0.0
    most_rows: int = 0
    """The number of rows of the largest measured call."""
    cap: int | None = None
    """The row limit since memory ran out, or None if memory never ran out."""
    full_calls: int = 0
    """The number of calls with at least `cap` rows since the limit was set."""
    seen_rows: set[int] = field(default_factory=set)
    """The numbers of rows that calls have had."""


class BatchLimits:
    """Row limits by the kind of call.

    The first call of a kind has one request. Later calls have as many rows as fit into memory, up
    to `row_limit`. Only `share` of the available memory is used, because the bytes per row may
    vary. When memory runs out, the limit becomes half of the rows of that call. The limit then
    grows again row by row, because possibly another process took the memory for a time.
    """

    def __init__(
        self, row_limit: int, probe: MemoryProbe | None = None, *, share: float = 0.8
    ) -> None:
        self._row_limit = row_limit
        self._probe = probe
        self._share = share
        self._measurements: OrderedDict[Hashable, _Measurements] = OrderedDict()

    def max_rows(self, key: Hashable, wanted: float = math.inf) -> int:
        """Return the number of rows that a call of this kind may have.

        If an earlier call had at least `wanted` rows, the memory is not measured again.
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
        """Return the number of rows of this kind that fit into the memory that is free now.

        Without a measurement, the result is the row limit. Any thread may call this method.
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
        """Whether no call of this kind with that number of rows was noted."""
        measured = self._measurements.get(key)
        return measured is None or rows not in measured.seen_rows

    def halve(self, key: Hashable, rows: int) -> None:
        """Limit calls of this kind to half of `rows`, because `rows` did not fit into memory."""
        measured = self._of(key)
        measured.cap, measured.full_calls = max(1, rows // 2), 0
        measured.most_rows = min(measured.most_rows, measured.cap)

    @contextmanager
    def measured(self, key: Hashable, rows: int) -> Iterator[None]:
        """Note the call that runs inside. Measure the call if it is the largest so far."""
        measured = self._of(key)
        measured.seen_rows.add(rows)
        with self._probed(measured, rows):
            yield
        if measured.cap is not None and rows >= measured.cap:
            self._grow(measured)

    def _grow(self, measured: _Measurements) -> None:
        """Raise the limit by one row after many calls that reached the limit."""
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
    """Return the result of `question`, or None if it raises.

    The error can be ignored: if the device has failed, the next call fails too and reports it.
    """
    try:
        return question()
    except Exception:  # noqa: BLE001 - the device or the machine may raise anything
        _log.warning(
            "the memory of a call was not measured", exc_info=True, extra={"action": "measure"}
        )
        return None
