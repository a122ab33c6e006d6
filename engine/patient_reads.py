"""PatientReads: reads of files that may hang, as those of a network mount whose server is away.

A thread in such a read cannot be ended. So there is one at most, and nobody waits for it for long.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from engine.errors import ModelsUnavailable

logger = logging.getLogger(__name__)

T = TypeVar("T")

_may_wait = ContextVar("_may_wait", default=True)


class WouldWait(Exception):
    """Within `without_waiting`, something has to be read first."""


@contextmanager
def without_waiting() -> Generator[None]:
    """What is called within waits for no read, and raises WouldWait instead."""
    token = _may_wait.set(False)
    try:
        yield
    finally:
        _may_wait.reset(token)


@dataclass(frozen=True, slots=True)
class _Read:
    key: Hashable
    function: Callable[[], Any]
    done: Future[Any]


class PatientReads:
    """Calls functions that read files, one after the other, in a thread that ends when idle."""

    def __init__(
        self,
        *,
        ttl_s: float,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        subject: str = "The models folder",
    ) -> None:
        """`ttl_s`: how long what was read is used again. `timeout_s`: how long a read may take
        before what was read the last time is used. `subject`: of the error text.
        """
        self._subject = subject
        self._ttl_s = ttl_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._values: dict[Hashable, tuple[float, Any]] = {}
        """When each was read, and what it was then."""
        self._reads: OrderedDict[Hashable, _Read] = OrderedDict()
        """The one at hand, and those that wait for it."""
        self._began_at: float | None = None
        """When the read at hand began; None while the thread does not run."""
        self._is_silent = False

    def last(self, key: Hashable) -> Any | None:
        """What was read under `key` the last time; None if nothing was."""
        with self._lock:
            return self._values.get(key, (0.0, None))[1]

    def forget(self, key: Hashable) -> None:
        """Keep no longer what was read under `key`."""
        with self._lock:
            self._values.pop(key, None)

    def read(self, key: Hashable, function: Callable[[], T], *, ttl_s: float | None = None) -> T:
        """What `function` returns or raises; callers with the same `key` share one call of it.

        `ttl_s`: how long it is used again; None is as long as all that is read.

        Where it does not return in time or raises an OSError, what it returned the last time.
        FileNotFoundError is raised: it says that a file is gone. Raises ModelsUnavailable where
        nothing was read yet, and WouldWait.
        """
        try:
            return self.read_now(key, function, ttl_s=ttl_s)
        except ModelsUnavailable:
            with self._lock:
                if key not in self._values:
                    raise
                last: T = self._values[key][1]
            return last

    def read_now(
        self, key: Hashable, function: Callable[[], T], *, ttl_s: float | None = None
    ) -> T:
        """The same, but ModelsUnavailable is raised also where it was read before."""
        ttl_s = self._ttl_s if ttl_s is None else ttl_s
        with self._lock:
            read_at, value = self._values.get(key, (float("-inf"), None))
            if self._clock() - read_at < ttl_s:
                known: T = value
                return known
            done = self._begin(key, function)
            wait_s = self._time_left_s()
        if not done.done() and wait_s > 0:
            if not _may_wait.get():
                raise WouldWait
            wait([done], wait_s)
        if not done.done():
            self._note_silence()
            raise self._unavailable(f"no answer in {self._timeout_s:g} s")
        try:
            result: T = done.result()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._unavailable(error.strerror or str(error)) from error
        return result

    def _begin(self, key: Hashable, function: Callable[[], Any]) -> Future[Any]:
        if key not in self._reads:
            self._reads[key] = _Read(key, function, Future())
        if self._began_at is None:
            self._began_at = self._clock()
            threading.Thread(target=self._work, name="models-folder", daemon=True).start()
        return self._reads[key].done

    def _time_left_s(self) -> float:
        """Nobody waits for a read that is overdue, nor for one behind it."""
        assert self._began_at is not None
        return self._began_at + self._timeout_s - self._clock()

    def _work(self) -> None:
        while (read := self._next()) is not None:
            value, error = None, None
            try:
                value = read.function()
            except Exception as raised:  # noqa: BLE001 - it is raised again where it was asked for
                error = raised
            with self._lock:
                del self._reads[read.key]
                if error is None:
                    self._values[read.key] = (self._clock(), value)
                if self._is_silent:
                    self._is_silent = False
                    logger.info("models folder answers", extra={"action": "models_folder"})
            if error is None:
                read.done.set_result(value)
            else:
                read.done.set_exception(error)

    def _next(self) -> _Read | None:
        with self._lock:
            read = next(iter(self._reads.values()), None)
            self._began_at = self._clock() if read else None
            return read

    def _note_silence(self) -> None:
        with self._lock:
            is_news, self._is_silent = not self._is_silent, True
        if is_news:
            fields = {"action": "models_folder", "of": self._subject, "timeout_s": self._timeout_s}
            logger.warning("models folder does not answer", extra=fields)

    def _unavailable(self, reason: str) -> ModelsUnavailable:
        return ModelsUnavailable(f"{self._subject} cannot be read: {reason}. Try again.")
