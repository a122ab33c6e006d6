"""Is the log as many streams as the settings say; and one stream that holds nothing, as several.

Whoever would read or write a log of another number of streams would take one event's place for
another's, so nothing is done on such a log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import StreamConfig, StreamInfo

from events.bus.errors import NO_STREAM
from events.bus.streams import JOBS, LOG_STREAM_NAMES, log_stream_name, log_subjects
from events.ids import PARTITIONS
from events.streams.log_streams import LogStream, LogStreams

logger = logging.getLogger(__name__)

CLOSED_SUBJECT = "closed.jobs"
"""Of the one stream while it becomes several: nobody can store anything in it."""

MakeConfig = Callable[[LogStream, int | None], StreamConfig]
"""Of one of the streams, and the number of its first message."""


class LogStreamsDiffer(Exception):
    """The log is there, and is otherwise than the settings say; nothing was changed."""

    def __init__(self, wanted: LogStreams, there: StreamInfo) -> None:
        count = _count(there)
        what = "one stream, which holds events" if count == 1 else f"{count} streams"
        remedy = f"set it to {count}, or see “A log of several streams” in the operations guide"
        if count == 1 and not there.state.messages:
            what, remedy = "one stream still", "start the service, which changes that"
        if not _is_ours(there):
            what = f"not all there is: the stream {there.config.name} in NATS is another’s"
            remedy = "remove that one, or give Darkroom an account of its own"
        super().__init__(
            f"DARKROOM_LOG_STREAMS is {wanted.count}, but the event log is {what}: {remedy}."
        )


async def require_as_set(js: JetStreamContext, streams: LogStreams) -> None:
    """Nothing is made where there are none. Raises LogStreamsDiffer and what nats-py raises."""
    if odd := _odd(await _log_streams(js, streams), streams):
        raise LogStreamsDiffer(streams, odd[0])


async def split_if_empty(
    js: JetStreamContext, streams: LogStreams, make_config: MakeConfig
) -> None:
    """Where the log is one stream without events, several: `make_config` says how they are.

    Positions go on behind those of the one stream. Each step may be done by two processes, and
    again after a death: the one stream takes no events from the first step on, the others are
    there before it goes. Raises LogStreamsDiffer and what nats-py raises.
    """
    odd = _odd(await _log_streams(js, streams), streams)
    if not odd:
        return
    if [info.config.name for info in odd] != [JOBS] or odd[0].state.messages:
        raise LogStreamsDiffer(streams, odd[0])
    await _close(js, odd[0], streams)
    last = (await js.stream_info(JOBS)).state.last_seq
    first = first_sequence(streams, after=last)
    for stream in streams.all():
        await js.add_stream(make_config(stream, first if last else None))
    now = await js.stream_info(JOBS)
    if now.state.messages or now.state.last_seq != last:  # of a write that was under way
        raise LogStreamsDiffer(streams, now)
    await js.delete_stream(JOBS)
    fields = {"action": "split_log", "streams": streams.count, "first_sequence": first}
    logger.warning("the log is several streams now", extra=fields)


async def _close(js: JetStreamContext, info: StreamInfo, streams: LogStreams) -> None:
    """Raises LogStreamsDiffer where something was stored at the last moment: it is as it was."""
    for consumer in await js.consumers_info(JOBS):
        await js.delete_consumer(JOBS, consumer.name)  # its subjects would not be there
    closed = info.config.evolve(subjects=[CLOSED_SUBJECT], republish=None)
    await js.update_stream(closed)
    now = await js.stream_info(JOBS)
    if now.state.messages:
        await js.update_stream(info.config)
        raise LogStreamsDiffer(streams, now)


def first_sequence(streams: LogStreams, *, after: int) -> int:
    """Of each of the streams, so that their positions stand behind this one."""
    return -(-after // streams.count) + 1


async def _log_streams(js: JetStreamContext, streams: LogStreams) -> list[StreamInfo]:
    """Each is asked for by its name: what else the account has may be slow, or not ours to see."""
    found = await asyncio.gather(*(_info(js, name) for name in LOG_STREAM_NAMES))
    wanted = {log_stream_name(stream) for stream in streams.all()}
    there = [info for info in found if info is not None]
    return [info for info in there if info.config.name in wanted or _is_ours(info)]


async def _info(js: JetStreamContext, name: str) -> StreamInfo | None:
    try:
        return await js.stream_info(name)
    except nats.js.errors.NotFoundError as error:
        if error.err_code != NO_STREAM:
            raise
        return None


def _is_ours(info: StreamInfo) -> bool:
    """Whether it is of the log, and not another's stream that happens to have such a name."""
    subjects = info.config.subjects or ()
    return any(each.startswith("jobs.") or each == CLOSED_SUBJECT for each in subjects)


def _odd(there: Sequence[StreamInfo], streams: LogStreams) -> list[StreamInfo]:
    """Those that a log of so many streams does not have, or has otherwise."""
    wanted = {log_stream_name(stream): set(log_subjects(stream)) for stream in streams.all()}
    return [info for info in there if not _is_as(info, wanted.get(info.config.name or ""))]


def _is_as(info: StreamInfo, subjects: set[str] | None) -> bool:
    if info.config.name == JOBS and subjects is not None:
        return True  # of one stream the setup puts the subjects right
    return subjects == set(info.config.subjects or ())


def _count(info: StreamInfo) -> int:
    """Of how many streams it is one."""
    return 1 if info.config.name == JOBS else PARTITIONS // len(info.config.subjects or [""])
