"""What log, queues and archive hold, and how far the projection is behind; looked up when asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from prometheus_client.metrics_core import Metric

from events.log import utc_now
from events.store.archiving.totals import archive_totals
from events.store.database import Database
from events.store.read_model import ReadModel
from events.streams.log_streams import LogStreams
from telemetry.gauges import gauge, gauge_by
from telemetry.streams import Streams


class LogMetrics:
    def __init__(
        self, streams: Streams, read_model: ReadModel, *, now: Callable[[], datetime] = utc_now
    ) -> None:
        self._streams = streams
        self._read_model = read_model
        self._now = now

    async def look(self) -> Iterable[Metric]:
        """Raises LogUnavailable, DatabaseUnavailable."""
        checkpoint = await self._read_model.checkpoint()
        states = await self._streams.states()
        log = [states[name] for name in self._streams.log]
        behind = sum(
            max(state.last_sequence - stream.last_sequence(checkpoint), 0)
            for state, stream in zip(log, LogStreams(len(log)).all(), strict=True)
        )
        since = await self._streams.stored_after(checkpoint) if behind else None
        lag_s = 0.0 if since is None else max((self._now() - since).total_seconds(), 0.0)
        sizes = {name: float(state.size_bytes) for name, state in states.items()}
        counts = {name: float(state.messages) for name, state in states.items()}
        fill = max(state.fill for state in log)
        blocked = await self._read_model.blocked.count()
        return [
            gauge_by("stream", "stream_bytes", "Bytes of the stream.", sizes),
            gauge_by("stream", "stream_messages", "Messages in the stream.", counts),
            gauge("log_fill_ratio", "How full the event log is, 0 to 1.", fill),
            gauge("projection_lag_events", "Events that no row has yet.", behind),
            gauge("projection_lag_seconds", "Age of the first event that no row has.", lag_s),
            gauge("jobs_blocked", "Jobs that the projection has stopped at.", blocked),
        ]


class ArchiveMetrics:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def look(self) -> Iterable[Metric]:
        """Raises DatabaseUnavailable."""
        totals = await archive_totals(self._database)
        return [
            gauge("archive_segments", "Segments of the archive.", totals.segments),
            gauge("archive_bytes", "Bytes of the segments.", totals.size_bytes),
        ]
