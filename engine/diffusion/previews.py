"""Previews: small pictures of what a sampler has so far, made beside the sampling.

Making one never holds up the device thread: one thread makes them, and what comes while it works is
passed over.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

_log = logging.getLogger(__name__)

MakePreview: TypeAlias = Callable[[], bytes]
"""Makes a JPEG, in any thread."""


class Previewer:
    """Makes the previews of all runs of an engine."""

    def __init__(self, period_s: float, *, now: Callable[[], float] = time.monotonic) -> None:
        """`period_s`: of each run there is one in that time at most."""
        self.period_s = period_s
        self.now = now
        self._orders: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_busy = threading.Event()

    @property
    def is_busy(self) -> bool:
        return self._is_busy.is_set()

    def order(self, make: MakePreview, report: Callable[[bytes], None]) -> None:
        """Call `report` with what `make` made, from another thread. Only where it is not busy."""
        self._is_busy.set()
        self._orders.put(lambda: report(make()))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="previews", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            work = self._orders.get()
            try:
                work()
            except Exception:  # noqa: BLE001 - a run does without
                _log.exception("no preview", extra={"action": "preview"})
            finally:
                self._is_busy.clear()


class RunPreviews:
    """Those of one run. Only the device thread uses it."""

    def __init__(self, previewer: Previewer, report: Callable[[bytes], None]) -> None:
        """`report` is called from another thread."""
        self._previewer = previewer
        self._report = report
        self._next_at = previewer.now()

    def wants(self) -> bool:
        """Whether one is due, and can be made now."""
        return not self._previewer.is_busy and self._previewer.now() >= self._next_at

    def show(self, make: MakePreview) -> None:
        """Have one made, where one is wanted."""
        self._next_at = self._previewer.now() + self._previewer.period_s
        self._previewer.order(make, self._report)
