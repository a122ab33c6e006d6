"""The job queue and the callback queue: projections of the log, rebuildable, never doubled."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from events.bus.connection import SCHEDULE, SCHEDULE_TARGET, Bus, NoAnswer
from events.bus.puller import Message, Puller
from events.bus.streams import (
    CALLBACKS,
    JOBS,
    QUEUE,
    ConsumerSpec,
    due_subject,
    lane_consumer,
    queue_subject,
    scheduled_subject,
)
from events.errors import LogUnavailable

_STORE_TIMEOUT_S = 5.0
_DEPTH_PERIOD_S = 1.0
_DEPTH_TIMEOUT_S = 1.0


class JobQueue:
    """What waits or runs, by endpoint and lane."""

    def __init__(self, bus: Bus, *, lease_s: float) -> None:
        self._bus = bus
        self._lease_s = lease_s
        self._depths: dict[str, tuple[int, float]] = {}
        """By endpoint: the depth, and until when it counts as known."""

    async def add(self, endpoint: str, lane: int, job_id: str) -> None:
        """Does nothing where the job is queued or running. Raises LogUnavailable, LogFull."""
        await _store_first(self._bus, queue_subject(endpoint, lane, job_id), job_id)

    async def remove(self, endpoint: str, lane: int, job_id: str) -> None:
        """Raises LogUnavailable."""
        await self._bus.purge(QUEUE, queue_subject(endpoint, lane, job_id))

    async def depth(self, endpoint: str) -> int:
        """Entries that wait or run, as of the last second. Raises LogUnavailable."""
        depth, until = self._depths.get(endpoint, (0, 0.0))
        if time.monotonic() >= until:
            subjects = f"queue.{endpoint}.*.*"
            pending = await self._bus.pending(QUEUE, subjects, timeout_s=_DEPTH_TIMEOUT_S)
            depth = sum(pending.values())
            self._depths[endpoint] = (depth, time.monotonic() + _DEPTH_PERIOD_S)
        return depth

    async def job_ids(self) -> set[str]:
        """Every job that has an entry. Raises LogUnavailable."""
        subjects = await self._bus.pending(QUEUE, "queue.>")
        return {subject.rsplit(".", 1)[1] for subject in subjects}

    @asynccontextmanager
    async def lane(self, endpoint: str, lane: int) -> AsyncGenerator[Puller]:
        """Pull one lane's entries. Raises LogUnavailable."""
        spec = lane_consumer(endpoint, lane, lease_s=self._lease_s)
        await self._bus.ensure_consumer(spec)
        async with self._bus.puller(spec.stream, spec.name) as puller:
            yield puller


class CallbackQueue:
    """Deliveries that wait: due now, or parked as a scheduled message (NATS ADR-51)."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def add(self, job_id: str) -> None:
        """Due at once; nothing where it waits already. Raises LogUnavailable, LogFull."""
        await _store_first(self._bus, due_subject(job_id), job_id)

    async def park(self, job_id: str, until: datetime) -> None:
        """Due at `until`; replaces an earlier time. Raises LogUnavailable, LogFull."""
        at = until.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        headers = {SCHEDULE: f"@at {at}", SCHEDULE_TARGET: due_subject(job_id)}
        subject = scheduled_subject(job_id)
        try:
            await self._bus.store(
                subject, job_id.encode(), timeout_s=_STORE_TIMEOUT_S, headers=headers
            )
        except NoAnswer as error:
            raise LogUnavailable from error

    async def job_ids(self) -> set[str]:
        """Every job whose delivery waits or is parked. Raises LogUnavailable."""
        subjects = await self._bus.pending(CALLBACKS, "callbacks.>")
        return {subject.rsplit(".", 1)[1] for subject in subjects}

    @asynccontextmanager
    async def due(self, spec: ConsumerSpec) -> AsyncGenerator[Puller]:
        """Raises LogUnavailable."""
        await self._bus.ensure_consumer(spec)
        async with self._bus.puller(spec.stream, spec.name) as puller:
            yield puller


async def _store_first(bus: Bus, subject: str, job_id: str) -> None:
    try:
        await bus.store_first(subject, job_id.encode(), timeout_s=_STORE_TIMEOUT_S)
    except NoAnswer as error:
        raise LogUnavailable from error


def job_id_of(entry: Message) -> str:
    return entry.subject.rsplit(".", 1)[1]


async def log_fill(bus: Bus) -> float:
    """How full the event log is, 0..1. Raises LogUnavailable."""
    return await bus.fill(JOBS)
