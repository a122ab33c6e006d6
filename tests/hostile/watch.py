"""What the rest of the world notices: answers to `GET /health/live`, and the engine's memory."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

import httpx
import psutil

from tests.support.service import Service

_PERIOD_S = 0.05
_ENGINE_TITLE = "ray::EngineActor"


class Watch:
    """Asks for `/health/live` all the time, from a thread of its own, on one connection."""

    def __init__(self, service: Service) -> None:
        self.longest_s = 0.0
        """The slowest answer since `begin`."""
        self.engine_bytes = 0
        """The most memory that an engine held since `begin`, resident."""
        self._service = service
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch")

    def begin(self) -> None:
        self.longest_s = 0.0
        self.engine_bytes = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        with httpx.Client(base_url=self._service.url, timeout=30, trust_env=False) as http:
            while not self._stopped.wait(_PERIOD_S):
                began = time.monotonic()
                try:
                    http.get("/health/live").raise_for_status()
                except httpx.HTTPError:
                    self.longest_s = max(self.longest_s, 30.0)
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                self.engine_bytes = max(self.engine_bytes, self._held())

    def _held(self) -> int:
        held = [0]
        for process in self._service.processes(_ENGINE_TITLE):
            with suppress(psutil.NoSuchProcess):
                held.append(process.memory_info().rss)
        return max(held)
