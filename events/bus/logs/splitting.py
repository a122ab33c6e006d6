"""One stream that holds nothing, made several; and one again, where an event came meanwhile."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import StreamConfig, StreamInfo

from events.bus.errors import STREAM_EXISTS_OTHERWISE
from events.bus.logs.log_setup import (
    CLOSED_SUBJECT,
    UNDO_SUBJECT,
    LogStreamsDiffer,
    closed_part,
    count_of,
    is_broken_off,
    is_closed,
    is_of_restore,
    missing_streams,
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
"""For how long a stream may be removed after a look at it."""
_ANNOUNCED_S = 2 * _LOOK_HOLDS_S
"""For how long it is said that a change is to be undone, before it is."""

MakeConfig = Callable[[LogStream, int | None], StreamConfig]
"""Of one of the streams, and the number of its first message."""


async def split_if_empty(
    js: JetStreamContext, streams: LogStreams, make_config: MakeConfig
) -> None:
    """Where the log is one stream without events, several: `make_config` says how they are.

    Positions go on behind those of the one stream. Each step may be done by two processes, and
    again after a death: the one stream takes no events from the first step on, the others are
    there before it goes. Where an event came into it nevertheless, the others go. A stream that a
    log of several lacks is made only where nothing was ever stored in the others.

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
        await _complete(js, streams, make_config, there)
        return
    one = one_of(odd)
    if one is None or one.state.messages or len(odd) > 1:
        raise LogStreamsDiffer(streams, there)
    await _close(js)
    if not await _replaced(js, streams, make_config):
        await _undo(js, streams, make_config, await streams_there(js, streams))
        if odd_streams(there := await streams_there(js, streams), streams):
            raise LogStreamsDiffer(streams, there)
        await _complete(js, streams, make_config, there)  # another process has ended the change
        return
    fields = {"action": "split_log", "streams": streams.count}
    logger.warning("the log is several streams now", extra=fields)


async def _close(js: JetStreamContext) -> None:
    for consumer in await js.consumers_info(JOBS):
        await js.delete_consumer(JOBS, consumer.name)  # its subjects would not be there
    one = await js.stream_info(JOBS)
    if not is_closed(one):
        await js.update_stream(one.config.evolve(subjects=[CLOSED_SUBJECT], republish=None))


async def _replaced(js: JetStreamContext, streams: LogStreams, make_config: MakeConfig) -> bool:
    """Whether they are there in place of the one stream. Not where something came into that."""
    one = await js.stream_info(JOBS)
    before = one.state
    if before.messages or one.config.subjects != [CLOSED_SUBJECT]:
        return False
    first = first_sequence(streams, after=before.last_seq) if before.last_seq else None
    for stream in streams.all():
        if not await _add(js, streams, make_config(stream, first)):
            return False
    return await _removed(js, streams, last_sequence=before.last_seq)


async def _removed(js: JetStreamContext, streams: LogStreams, *, last_sequence: int) -> bool:
    """Whether the one stream is. Not where a write under way came into it, or others undo this."""

    async def may_go() -> bool:
        there = await streams_there(js, streams)
        one = one_of(there)
        if one is None or one.config.subjects != [CLOSED_SUBJECT]:
            return False
        if one.state.messages or one.state.last_seq != last_sequence:
            return False
        return odd_streams(there, streams) == [one] and not missing_streams(there, streams)

    return await _remove(js, JOBS, may_go)


async def _remove(js: JetStreamContext, name: str, may_go: Callable[[], Awaitable[bool]]) -> bool:
    """Whether it was removed.

    A process may stand still after its look, and then looks again: by now it may be the log.
    """
    while True:
        looked_at = time.monotonic()
        if not await may_go():
            return False
        if time.monotonic() - looked_at <= _LOOK_HOLDS_S:
            return await js.delete_stream(name)


async def _add(js: JetStreamContext, streams: LogStreams, config: StreamConfig) -> bool:
    """False where it is there, and begins too early.

    A change that was broken off may have made it by other settings. Raises LogStreamsDiffer where
    another process makes another number of streams.
    """
    try:
        await js.add_stream(config)
    except nats.js.errors.APIError as error:
        if error.err_code != STREAM_EXISTS_OTHERWISE:
            raise
        there = await js.stream_info(str(config.name))
        if set(there.config.subjects or ()) != set(config.subjects or ()):
            raise LogStreamsDiffer(streams, await streams_there(js, streams)) from error
        if there.state.last_seq < (config.first_seq or 1) - 1:
            return False
        await js.update_stream(config.evolve(first_seq=there.config.first_seq))
    return True


async def _complete(
    js: JetStreamContext,
    streams: LogStreams,
    make_config: MakeConfig,
    there: Sequence[StreamInfo],
) -> None:
    """Make those that are missing beside others, as of a change: they begin where the others do.

    Raises LogStreamsDiffer where the others were used: nobody knows how far the missing one was,
    and positions that are given twice would be taken for events that are known.
    """
    if not missing_streams(there, streams):
        return
    there = await streams_there(js, streams)  # another process may have made them meanwhile
    missing, parts = missing_streams(there, streams), parts_of(there)
    if missing and any(map(was_used, parts)):
        raise LogStreamsDiffer(streams, there)
    first = max((part.config.first_seq or 1 for part in parts), default=1)
    for stream in missing:
        await _add(js, streams, make_config(stream, first if first > 1 else None))


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
    if _are_log(there):
        await _open(js, streams, make_config, there)
        return
    there = await _announced(js, streams)
    if _are_log(there):
        await _open(js, streams, make_config, there)
        return
    one = one_of(there)
    if one is not None and is_closed(one) and one.config.subjects != [UNDO_SUBJECT]:
        return  # another process goes on with the change, or restores
    for part in parts_of(there):
        if not is_closed(part):
            closed = part.config.evolve(subjects=[closed_part(part)], republish=None)
            await js.update_stream(closed)
    parts = parts_of(there := await streams_there(js, streams))
    if _are_log(there):
        await _open(js, streams, make_config, there)
        return
    for part in parts:
        if not await _remove_part(js, str(part.config.name)):
            return
    config, wanted = (await js.stream_info(JOBS)).config, make_config(LogStream(), None)
    await js.update_stream(config.evolve(subjects=wanted.subjects, republish=wanted.republish))
    logger.warning("the log stays one stream", extra={"action": "split_log", "streams": 1})


async def _remove_part(js: JetStreamContext, name: str) -> bool:
    async def may_go() -> bool:
        now = await js.stream_info(name)
        return is_closed(now) and not was_used(now)

    return await _remove(js, name, may_go)


def _are_log(there: Sequence[StreamInfo]) -> bool:
    """Whether the log is the several streams, although it was to become one again."""
    return one_of(there) is None or any(map(was_used, parts_of(there)))


async def _announced(js: JetStreamContext, streams: LogStreams) -> list[StreamInfo]:
    """What is there once whoever is about to remove the one stream has seen that it stays.

    Raises what nats-py raises, as where the one stream was removed.
    """
    one = await js.stream_info(JOBS)
    if one.config.subjects == [CLOSED_SUBJECT]:
        await js.update_stream(one.config.evolve(subjects=[UNDO_SUBJECT]))
    if is_closed(one):
        await asyncio.sleep(_ANNOUNCED_S)
    return await streams_there(js, streams)


async def _open(
    js: JetStreamContext,
    streams: LogStreams,
    make_config: MakeConfig,
    there: Sequence[StreamInfo],
) -> None:
    """Those of several that are closed take events again, and nobody undoes the change."""
    one = one_of(there)
    if one is not None and one.config.subjects == [UNDO_SUBJECT]:
        await js.update_stream(one.config.evolve(subjects=[CLOSED_SUBJECT]))
    closed = {part.config.name: part.config for part in parts_of(there) if is_closed(part)}
    count = count_of(there)
    if count == 1 and len(closed) != streams.count:
        return  # an earlier version closed them all, and they may be of another number
    for stream in (LogStreams(count) if count > 1 else streams).all():
        wanted = make_config(stream, None)
        if config := closed.get(wanted.name):
            opened = config.evolve(subjects=wanted.subjects, republish=wanted.republish)
            await js.update_stream(opened)


def first_sequence(streams: LogStreams, *, after: int) -> int:
    """Of each of the streams, so that their positions stand behind this one."""
    return -(-after // streams.count) + 1
