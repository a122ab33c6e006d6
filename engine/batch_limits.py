"""How many rows one device call may have, from the memory that earlier calls were seen to take."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

_REMEMBERED_KEYS = 512


class Gauge(Protocol):
    """The memory of a device."""

    def available_bytes(self) -> int:
        """What further calls may take, what earlier ones gave back to the allocator included."""

    def start(self) -> None:
        """Note what is in use now."""

    def grown_bytes(self) -> int:
        """How far the use went beyond that since `start`, at its highest."""


@dataclass(slots=True)
class _Seen:
    row_bytes: float = 0.0
    most_rows: int = 0
    """The largest call that was measured."""
    cap: int | None = None
    """Where memory ran out."""


class RowLimits:
    """A call whose kind was never seen has one request; from then on as many as fit.

    `share` of what is available is given away: what a row takes is measured, and may vary.
    """

    def __init__(self, most: int, gauge: Gauge | None = None, *, share: float = 0.8) -> None:
        self._most = most
        self._gauge = gauge
        self._share = share
        self._seen: OrderedDict[Hashable, _Seen] = OrderedDict()

    def rows_of(self, key: Hashable) -> int:
        """How many rows a call of this kind may have."""
        seen = self._seen.get(key)
        if self._gauge is None:
            return self._most if seen is None or seen.cap is None else seen.cap
        if seen is None or not seen.most_rows:
            return 1
        most = self._most if seen.cap is None else seen.cap
        if most <= seen.most_rows or not seen.row_bytes:
            return most
        fitting = int(self._gauge.available_bytes() * self._share / seen.row_bytes)
        return min(most, max(seen.most_rows, fitting))

    def cut(self, key: Hashable, rows: int) -> None:
        """Memory ran out with so many rows."""
        self._of(key).cap = max(1, rows // 2)

    @contextmanager
    def measured(self, key: Hashable, rows: int) -> Iterator[None]:
        """Around a call. Only one larger than all before it costs a measurement."""
        seen = self._of(key)
        if self._gauge is None or rows <= seen.most_rows:
            yield
            return
        self._gauge.start()
        yield
        seen.row_bytes = max(seen.row_bytes, self._gauge.grown_bytes() / rows)
        seen.most_rows = rows

    def _of(self, key: Hashable) -> _Seen:
        seen = self._seen.setdefault(key, _Seen())
        self._seen.move_to_end(key)
        if len(self._seen) > _REMEMBERED_KEYS:
            self._seen.popitem(last=False)
        return seen
