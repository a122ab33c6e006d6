"""Measurements of NATS: whether the event log accepts writes, and how full the streams are."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from events.bus.bus import Bus
from events.bus.nats_errors import NoAnswer
from events.bus.streams import CALLBACKS, JOBS, QUEUE, REPUBLISH_FROM, STREAMS, StreamSetup
from events.errors import LogFull, LogUnavailable
from events.log import StreamState, utc_now
from events.retry import pause

T = TypeVar("T")

_PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True)
class _Answer(Generic[T]):
    value: T
    at: float


class LastKnown(Generic[T]):
    """A value that is requested at most once per period, for any number of callers.

    While requests fail, the last answer is used until it is older than `oldest_s`. After that,
    callers get an error only if requests have failed for at least two seconds. So one lost request
    causes no error.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[T]],
        *,
        period_s: float,
        oldest_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`ask` may raise LogUnavailable. Callers wait for `ask`, so it needs a short time-out."""
        self._ask = ask
        self._period_s = period_s
        self._oldest_s = oldest_s
        self._clock = clock
        self._sleep = sleep
        self._silent_since: float | None = None
        """The start of the first failed request since the last answer, or None."""
        self._answer: _Answer[T] | None = None
        self._ask_again_at = clock()
        self._asking: asyncio.Task[None] | None = None

    async def get(self) -> T:
        """Return the value. Raises LogUnavailable if there was no answer for too long."""
        while True:
            await self._ask_if_due()
            answer, now = self._answer, self._clock()
            if answer is not None and now - answer.at <= self._oldest_s:
                return answer.value
            if self._silent_since is not None and now - self._silent_since >= _PATIENCE_S:
                raise LogUnavailable(
                    "The event log does not report its fill and the number of waiting jobs. "
                    "Nothing was stored. Try again."
                )
            await self._sleep(max(0.0, self._ask_again_at - now))

    def last(self) -> T | None:
        """Return the last answer without waiting, or None before the first answer.

        If the period has passed, begin a request.
        """
        self._begin_if_due()
        return None if self._answer is None else self._answer.value

    def _begin_if_due(self) -> asyncio.Task[None] | None:
        """Begin a request if the period has passed. Return the running request, if any.

        The request runs in its own task, so that it continues for the other callers if one caller
        is cancelled.
        """
        if self._asking is None and self._clock() >= self._ask_again_at:
            self._asking = asyncio.create_task(self._refresh())
        return self._asking

    async def _ask_if_due(self) -> None:
        if (asking := self._begin_if_due()) is not None:
            await asyncio.wait({asking})
            asking.result()

    async def _refresh(self) -> None:
        began = self._clock()
        try:
            self._answer = _Answer(await self._ask(), self._clock())
            self._silent_since = None
        except LogUnavailable:  # The last answer stays in use.
            if self._silent_since is None:
                self._silent_since = began
        finally:
            self._ask_again_at = self._clock() + self._period_s
            self._asking = None


logger = logging.getLogger(__name__)


_FILL_PERIOD_S = 1.0
_CANARY_SUBJECT = "canary.ready"
_CANARY_TIMEOUT_S = 2.0
_CANARY = bytes(8192)
"""A test write, which is larger than a block of a file system, because on a full disk the
last block of a file may have room for a few bytes.
"""


async def warn_if_size_differs(bus: Bus, *, configured: int) -> None:
    """Log a warning if the log's `max_bytes` differs from the settings.

    The service never changes the `max_bytes` of an existing log.
    """
    while True:
        await bus.wait_connected()
        try:
            size = await bus.max_bytes(JOBS)
        except LogUnavailable:
            await pause(1)
            continue
        if size != configured:
            logger.warning(
                "the log keeps its present size; see the operations guide to change it",
                extra={"action": "prepare", "max_bytes": size, "configured": configured},
            )
        return


async def write_error(bus: Bus) -> str | None:
    """Return why a stream refuses all writes since an earlier write failed, or None.

    Only a restart of nats-server makes it write again.
    """
    reasons = await asyncio.gather(*(bus.write_error(spec.name) for spec in STREAMS))
    for spec, reason in zip(STREAMS, reasons, strict=True):
        if reason is not None:
            return f"The event log cannot be written (stream {spec.name}): {reason}."
    return None


class JetStreamHealth:
    """The health of the log, cached for a short time so that frequent requests cause no load."""

    def __init__(self, bus: Bus, *, ready_period_s: float, max_staleness_s: float) -> None:
        """`max_staleness_s` is the largest age of the last known fill that `fill` returns."""
        self._bus = bus
        self._fill = LastKnown(
            lambda: bus.fill(JOBS), period_s=_FILL_PERIOD_S, oldest_s=max_staleness_s
        )
        self._write_error = LastKnown(
            self._find_write_error, period_s=ready_period_s, oldest_s=math.inf
        )
        self._canary = LastKnown(self._write_canary, period_s=ready_period_s, oldest_s=math.inf)
        self._logged: str | None = None

    async def fill(self) -> float:
        """Return the used share of the log's `max_bytes`, 0..1. Raises LogUnavailable."""
        return await self._fill.get()

    async def ready(self) -> str | None:
        """Return None if the log accepts writes, or else the reason why it does not.

        Only a write shows that a disk is full. The error of an earlier write remains in its stream
        when there is room again.
        """
        if not self._bus.is_connected:
            return str(LogUnavailable())
        return await self._write_error.get() or await self._canary.get()

    async def known_refusal(self) -> str | None:
        """Return the reason if the last check has found that a write has failed, or else None.

        Only after such a check, wait for the next one.
        """
        return await self._write_error.get() if self._write_error.last() else None

    async def _find_write_error(self) -> str | None:
        found = await write_error(self._bus)
        if found != self._logged:
            fields = {"action": "check_log", "reason": found}
            if found is None:
                logger.info("the event log can be written again", extra=fields)
            else:
                logger.warning("the event log cannot be written", extra=fields)
            self._logged = found
        return found

    async def _write_canary(self) -> str | None:
        try:
            await self._bus.store(_CANARY_SUBJECT, _CANARY, timeout_s=_CANARY_TIMEOUT_S)
        except (LogUnavailable, LogFull) as error:
            return str(error)
        except NoAnswer:
            slow = f"The event log did not store a message within {_CANARY_TIMEOUT_S:g} s."
            return await write_error(self._bus) or slow
        return None


_TIME = "Nats-Time-Stamp"


async def stream_states(bus: Bus) -> dict[str, StreamState]:
    """Return the state of each stream, by name. Raises LogUnavailable."""
    return {spec.name: await bus.state(spec.name) for spec in STREAMS}


async def stored_after(bus: Bus, offset: int) -> datetime | None:
    """Return the time at which the log stored the first event after an offset, or None.

    Raises LogUnavailable.
    """
    following = await bus.listing(JOBS, REPUBLISH_FROM, after=offset, count=1)
    return datetime.fromisoformat(following[0].headers[_TIME]) if following else None


_NO_LIMIT = -1


@dataclass(frozen=True, slots=True)
class ServerReport:
    """The state of a NATS server. If `has_jetstream` is False, nothing else is known."""

    has_jetstream: bool
    local_time: datetime | None = None
    """The time in the middle between a request and its answer, by this machine's clock."""
    server_time: datetime | None = None
    """The time of the same answer, by the server's clock. Both times are None if no stream exists.
    """
    missing: tuple[str, ...] = ()
    """The names of the streams that do not exist."""
    differing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The names of the settings that differ from this version's configuration, by stream."""
    streams: Mapping[str, StreamState] = field(default_factory=dict)
    free_bytes: int | None = None
    """The free space of the account; None if the account has no limit."""

    @property
    def log(self) -> StreamState | None:
        return self.streams.get(JOBS)

    @property
    def queued(self) -> int:
        """The number of entries of jobs that wait or run."""
        return self.streams[QUEUE].messages if QUEUE in self.streams else 0

    @property
    def callbacks(self) -> int:
        """The number of deliveries that wait."""
        return self.streams[CALLBACKS].messages if CALLBACKS in self.streams else 0


async def describe_server(bus: Bus, *, replicas: int) -> ServerReport:
    """Query the server. `replicas` is the expected number of copies of each stream.

    Raises LogUnavailable.
    """
    try:
        account = await bus.ask("$JS.API.INFO", b"")
    except LogUnavailable:
        if not bus.is_connected:
            raise
        return ServerReport(has_jetstream=False)
    setup = StreamSetup(replicas=replicas, log_max_bytes=_NO_LIMIT)
    missing: list[str] = []
    differing: dict[str, tuple[str, ...]] = {}
    states: dict[str, StreamState] = {}
    local_time = server_time = None
    for spec in STREAMS:
        before = utc_now()
        # Each stream is queried by its name, because the account may have very many streams.
        info = await bus.describe(spec.name)
        if info is None:
            missing.append(spec.name)
            continue
        local_time, server_time = (
            before + (utc_now() - before) / 2,
            datetime.fromisoformat(info["ts"]),
        )
        states[spec.name] = _state(info)
        if found := setup.differing(spec, info["config"]):
            differing[spec.name] = found
    return ServerReport(
        has_jetstream=True,
        local_time=local_time,
        server_time=server_time,
        missing=tuple(missing),
        differing=differing,
        streams=states,
        free_bytes=_free_bytes(account),
    )


def _state(info: Mapping[str, Any]) -> StreamState:
    state = info["state"]
    return StreamState(
        messages=state["messages"],
        size_bytes=state["bytes"],
        max_bytes=info["config"].get("max_bytes") or _NO_LIMIT,
        last_sequence=state["last_seq"],
    )


def _free_bytes(account: Mapping[str, Any]) -> int | None:
    most = account.get("limits", {}).get("max_storage", _NO_LIMIT)
    return None if most < 0 else max(0, most - account.get("storage", 0))
