"""One stream that holds nothing, made several; and one again, where an event came meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import StreamConfig, StreamInfo

from events.bus.errors import STREAM_EXISTS_OTHERWISE
from events.bus.logs.log_setup import (
    CLOSED_SUBJECT,
    LogStreamsDiffer,
    closed_part,
    count_of,
    is_broken_off,
    is_closed,
    is_of_restore,
    odd_streams,
    one_of,
    parts_of,
    streams_there,
    was_used,
)
from events.bus.streams import JOBS
from events.streams.log_streams import LogStream, LogStreams

logger = logging.getLogger(__name__)

_LOOK_HOLDS_S = 1.0
"""For how long the one stream may be removed after a look at it."""

MakeConfig = Callable[[LogStream, int | None], StreamConfig]
"""Of one of the streams, and the number of its first message."""


async def split_if_empty(
    js: JetStreamContext, streams: LogStreams, make_config: MakeConfig
) -> None:
    """Where the log is one stream without events, several: `make_config` says how they are.

    Positions go on behind those of the one stream. Each step may be done by two processes, and
    again after a death: the one stream takes no events from the first step on, the others are
    there before it goes. Where an event came into it nevertheless, the others go.

    Raises LogStreamsDiffer and what nats-py raises.
    """
    there = await streams_there(js, streams)
    if is_of_restore(there):
        raise LogStreamsDiffer(streams, there)
    if is_broken_off(there):
        await _undo(js, streams, make_config, there)
        there = await streams_there(js, streams)
    odd = odd_streams(there, streams)
    if not odd:
        return
    one = one_of(odd)
    if one is None or one.state.messages or len(odd) > 1:
        raise LogStreamsDiffer(streams, there)
    await _close(js)
    if not await _replaced(js, streams, make_config):
        await _undo(js, streams, make_config, await streams_there(js, streams))
        if odd_streams(there := await streams_there(js, streams), streams):
            raise LogStreamsDiffer(streams, there)
        return  # another process has ended the change
    fields = {"action": "split_log", "streams": streams.count}
    logger.warning("the log is several streams now", extra=fields)


async def _close(js: JetStreamContext) -> None:
    for consumer in await js.consumers_info(JOBS):
        await js.delete_consumer(JOBS, consumer.name)  # its subjects would not be there
    config = (await js.stream_info(JOBS)).config
    await js.update_stream(config.evolve(subjects=[CLOSED_SUBJECT], republish=None))


async def _replaced(js: JetStreamContext, streams: LogStreams, make_config: MakeConfig) -> bool:
    """Whether they are there in place of the one stream. Not where something came into that."""
    before = (await js.stream_info(JOBS)).state
    if before.messages:
        return False
    first = first_sequence(streams, after=before.last_seq) if before.last_seq else None
    for stream in streams.all():
        if not await _add(js, make_config(stream, first)):
            return False
    return await _removed(js, last_sequence=before.last_seq)


async def _removed(js: JetStreamContext, *, last_sequence: int) -> bool:
    """Whether the one stream is; not where a write under way came into it, or it is open again.

    A process may stand still after its look, and what it saw is true no longer.
    """
    while True:
        looked_at = time.monotonic()
        one = await js.stream_info(JOBS)
        is_as_before = not one.state.messages and one.state.last_seq == last_sequence
        if one.config.subjects != [CLOSED_SUBJECT] or not is_as_before:
            return False
        if time.monotonic() - looked_at <= _LOOK_HOLDS_S:
            await js.delete_stream(JOBS)
            return True


async def _add(js: JetStreamContext, config: StreamConfig) -> bool:
    """False where it is there, and cannot be the one that is wanted.

    A change that was broken off may have made it by other settings.
    """
    try:
        await js.add_stream(config)
    except nats.js.errors.APIError as error:
        if error.err_code != STREAM_EXISTS_OTHERWISE:
            raise
        there = await js.stream_info(str(config.name))
        is_behind = there.state.last_seq < (config.first_seq or 1) - 1
        if is_behind or set(there.config.subjects or ()) != set(config.subjects or ()):
            return False
        await js.update_stream(config.evolve(first_seq=there.config.first_seq))
    return True


async def _undo(
    js: JetStreamContext,
    streams: LogStreams,
    make_config: MakeConfig,
    there: Sequence[StreamInfo],
) -> None:
    """Make it one stream again. Each step may be done by two processes, and again.

    Not where another stream was used, or the one is gone: then the others are the log, and stay.
    They are closed before they go, and looked at again. Raises what nats-py raises.
    """
    if one_of(there) is None or any(map(was_used, parts_of(there))):
        await _open(js, streams, make_config, there)
        return
    await js.stream_info(JOBS)  # another process may have removed it: then the parts are the log
    for part in parts_of(there):
        if not is_closed(part):
            closed = part.config.evolve(subjects=[closed_part(part)], republish=None)
            await js.update_stream(closed)
    parts = parts_of(now := await streams_there(js, streams))
    if any(map(was_used, parts)):
        await _open(js, streams, make_config, now)
        return
    for part in parts:
        await js.delete_stream(str(part.config.name))
    config, wanted = (await js.stream_info(JOBS)).config, make_config(LogStream(), None)
    await js.update_stream(config.evolve(subjects=wanted.subjects, republish=wanted.republish))
    logger.warning("the log stays one stream", extra={"action": "split_log", "streams": 1})


async def _open(
    js: JetStreamContext,
    streams: LogStreams,
    make_config: MakeConfig,
    there: Sequence[StreamInfo],
) -> None:
    """Those of several that are closed take events again."""
    closed = {part.config.name: part.config for part in parts_of(there) if is_closed(part)}
    count = count_of(there)
    for stream in (LogStreams(count) if count > 1 else streams).all():
        wanted = make_config(stream, None)
        if config := closed.get(wanted.name):
            opened = config.evolve(subjects=wanted.subjects, republish=wanted.republish)
            await js.update_stream(opened)


def first_sequence(streams: LogStreams, *, after: int) -> int:
    """Of each of the streams, so that their positions stand behind this one."""
    return -(-after // streams.count) + 1
