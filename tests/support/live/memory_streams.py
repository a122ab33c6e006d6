"""A log of several streams, in memory."""

from __future__ import annotations

from events.bus.contents import StreamsContents
from events.bus.logs.job_log import StreamsLog
from events.log import WholeLog
from events.memory.contents import MemoryLogContents
from events.memory.log import MemoryLog
from events.streams.contents import LogContents
from events.streams.log_streams import LogStreams


def memory_streams(count: int) -> tuple[WholeLog, LogContents]:
    """A log, and what it holds."""
    streams = LogStreams(count)
    parts = [MemoryLog(stream) for stream in streams.all()]
    log = parts[0] if count == 1 else StreamsLog(parts, streams)
    return log, contents_of(log)


def contents_of(log: WholeLog) -> LogContents:
    if isinstance(log, MemoryLog):
        return MemoryLogContents(log)
    parts = [contents_of(part) for part in log.parts if isinstance(part, MemoryLog)]
    return StreamsContents(parts, log, LogStreams(len(parts)))
