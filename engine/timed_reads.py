"""Reads files with a time-out, because a read of a network mount hangs while its server is down.

A hanging thread cannot be ended, so each TimedReads makes all reads in one thread.
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


@contextmanager
def without_waiting() -> Generator[None]:
    """Within this context, a call that would wait for a read raises BlockingIOError instead."""
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


class TimedReads:
    """Calls functions that read files, one after the other, in a thread that ends when idle."""

    def __init__(
        self,
        *,
        ttl_s: float,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        subject: str = "The models folder",
    ) -> None:
        """`ttl_s` is the time for which a result is reused. If a read takes longer than
        `timeout_s`, its previous result is used. `subject` is the subject of the error message.
        """
        self._subject = subject
        self._ttl_s = ttl_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._values: dict[Hashable, tuple[float, Any]] = {}
        """The time and the result of the last successful read of each key."""
        self._reads: OrderedDict[Hashable, _Read] = OrderedDict()
        """The current read, and the reads that wait for its end."""
        self._began_at: float | None = None
        """The time at which the current read began; None while the thread does not run."""
        self._is_silent = False

    def last(self, key: Hashable) -> Any | None:
        """Return the last value that was read under `key`; None if there is no value."""
        with self._lock:
            return self._values.get(key, (0.0, None))[1]

    def forget(self, key: Hashable) -> None:
        with self._lock:
            self._values.pop(key, None)

    def read(self, key: Hashable, function: Callable[[], T], *, ttl_s: float | None = None) -> T:
        """Return the result of `function`. Concurrent callers with the same `key` share one call.

        `ttl_s` is the time for which the result is reused; None means the default of this reader.

        If `function` needs too long or raises an OSError, its previous result is returned, and
        ModelsUnavailable is raised if there is none. FileNotFoundError is passed on, because it
        means that a file was removed. Raises BlockingIOError inside `without_waiting` if the call
        would wait.
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
        """Like `read`, but raise ModelsUnavailable even if there is a previous result."""
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
                raise BlockingIOError
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
        if self._began_at is None:
            # The new thread waits for the lock, which the caller holds. If the thread cannot start,
            # nothing has changed, so the next call tries again.
            threading.Thread(target=self._work, name="models-folder", daemon=True).start()
            self._began_at = self._clock()
        if key not in self._reads:
            self._reads[key] = _Read(key, function, Future())
        return self._reads[key].done

    def _time_left_s(self) -> float:
        """Return the seconds until the current read is overdue, or less than 0 if it is overdue."""
        assert self._began_at is not None
        return self._began_at + self._timeout_s - self._clock()

    def _work(self) -> None:
        while (read := self._next()) is not None:
            value, error = None, None
            try:
                value = read.function()
            except BaseException as raised:  # noqa: BLE001 - it is raised again in the caller
                error = raised
            with self._lock:
                del self._reads[read.key]
                if error is None:
                    self._values[read.key] = (self._clock(), value)
                if self._is_silent:
                    self._is_silent = False
                    logger.info(
                        "the models folder answers again", extra={"action": "models_folder"}
                    )
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
            logger.warning("the models folder does not answer", extra=fields)

    def _unavailable(self, reason: str) -> ModelsUnavailable:
        return ModelsUnavailable(f"{self._subject} cannot be read: {reason}. Try again.")
