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
    def available_bytes(self) -> int:
        """Return the memory that further calls may take, including freed memory that is cached."""

    def start(self) -> None:
        """Record how much memory is in use now."""

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


class BatchLimits:
    """Row limits by the kind of call.

    The first call of a kind has one request. Later calls have as many rows as fit into `share` of
    the available memory, up to `row_limit`. `share` is below 1, because the bytes per row may vary.
    When memory runs out, the limit becomes half of the rows of the failed call. After every
    `_CALLS_TO_GROW` calls that reach this limit, the limit grows by one row, because another
    process may have used the memory only for a time.
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

        The available memory is not read if an earlier call had at least `wanted` rows.
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
        """Return the number of rows of this kind that fit into the memory that is available now.

        Without a measurement, the result is the row limit. Any thread may call this method.
        """
        measured = self._measurements.get(key)
        if measured is None:
            return self._row_limit
        limit = self._row_limit if measured.cap is None else measured.cap
        if self._probe is None or not measured.row_bytes:
            return limit
        available_bytes = _result_or_none(self._probe.available_bytes) or 0
        fitting = int(available_bytes * self._share / measured.row_bytes)
        return min(limit, max(measured.most_rows, fitting))

    def is_first(self, key: Hashable, rows: int) -> bool:
        """Whether `measured` was never called with this kind and this number of rows."""
        measured = self._measurements.get(key)
        return measured is None or rows not in measured.seen_rows

    def halve(self, key: Hashable, rows: int) -> None:
        """Limit calls of this kind to half of `rows`, because `rows` did not fit into memory."""
        measured = self._measurements_of(key)
        measured.cap, measured.full_calls = max(1, rows // 2), 0
        measured.most_rows = min(measured.most_rows, measured.cap)

    @contextmanager
    def measured(self, key: Hashable, rows: int) -> Iterator[None]:
        """Measure the call inside the context if it is the largest call of its kind so far."""
        measured = self._measurements_of(key)
        measured.seen_rows.add(rows)
        with self._probed(measured, rows):
            yield
        if measured.cap is not None and rows >= measured.cap:
            self._grow(measured)

    def _grow(self, measured: _Measurements) -> None:
        measured.full_calls += 1
        if measured.full_calls >= _CALLS_TO_GROW and measured.cap is not None:
            cap = measured.cap + 1
            measured.cap, measured.full_calls = (cap if cap < self._row_limit else None), 0

    @contextmanager
    def _probed(self, measured: _Measurements, rows: int) -> Iterator[None]:
        if self._probe is None or rows <= measured.most_rows:
            yield
            return
        _result_or_none(self._probe.start)
        yield
        grown_bytes = _result_or_none(self._probe.peak_growth_bytes)
        if grown_bytes is not None:
            measured.row_bytes = max(measured.row_bytes, grown_bytes / rows)
            measured.most_rows = rows

    def _measurements_of(self, key: Hashable) -> _Measurements:
        measured = self._measurements.setdefault(key, _Measurements())
        self._measurements.move_to_end(key)
        if len(self._measurements) > _REMEMBERED_KEYS:
            self._measurements.popitem(last=False)
        return measured


def _result_or_none(function: Callable[[], T]) -> T | None:
    """Return the result of `function`, or None if it raises.

    The error can be ignored: if the device has failed, the next call fails too and reports it.
    """
    try:
        return function()
    except Exception:  # noqa: BLE001 - the device or the machine may raise anything
        _log.warning(
            "the memory of a call was not measured", exc_info=True, extra={"action": "measure"}
        )
        return None
