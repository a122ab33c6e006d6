"""Is the log as many streams as the settings say?

Whoever would read or write a log of another number of streams would take one event's place for
another's, so nothing is done on such a log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import StreamInfo

from events.bus.errors import NO_STREAM
from events.bus.streams import JOBS, LOG_STREAM_NAMES, log_stream_name, log_subjects
from events.ids import PARTITIONS
from events.streams.log_streams import LogStream, LogStreams

CLOSED_SUBJECT = "closed.jobs"
"""Of the one stream while it becomes several: nobody can store anything in it."""
UNDO_SUBJECT = f"{CLOSED_SUBJECT}.undo"
"""Of the one stream once it shall stay the only one: nobody may remove it."""
RESTORE_SUBJECT = f"{CLOSED_SUBJECT}.restore"
"""Of the one stream while a restore stores its events in several."""


class LogStreamsDiffer(Exception):
    """The log is there, and is otherwise than the settings say."""

    def __init__(self, wanted: LogStreams, there: Sequence[StreamInfo]) -> None:
        super().__init__(_sentence(wanted, there))


async def require_as_set(js: JetStreamContext, streams: LogStreams) -> None:
    """Nothing is made where there are none. Raises LogStreamsDiffer and what nats-py raises."""
    there = await streams_there(js, streams)
    if is_of_restore(there) or odd_streams(there, streams):
        raise LogStreamsDiffer(streams, there)


async def streams_there(js: JetStreamContext, streams: LogStreams) -> list[StreamInfo]:
    """Those of the log, of whatever number, and those of others that have a name of `streams`.

    Each is asked for by its name: what else the account has may be slow, or not ours to see.
    """
    found = await asyncio.gather(*(_info(js, name) for name in LOG_STREAM_NAMES))
    wanted = {log_stream_name(stream) for stream in streams.all()}
    there = [info for info in found if info is not None]
    return [info for info in there if info.config.name in wanted or is_ours(info)]


async def _info(js: JetStreamContext, name: str) -> StreamInfo | None:
    try:
        return await js.stream_info(name)
    except nats.js.errors.NotFoundError as error:
        if error.err_code != NO_STREAM:
            raise
        return None


def odd_streams(there: Sequence[StreamInfo], streams: LogStreams) -> list[StreamInfo]:
    """Those that a log of so many streams does not have, or has otherwise."""
    wanted = {log_stream_name(stream): set(log_subjects(stream)) for stream in streams.all()}
    return [info for info in there if not _is_as(info, wanted.get(info.config.name or ""))]


def _is_as(info: StreamInfo, subjects: set[str] | None) -> bool:
    if info.config.name == JOBS and subjects is not None:
        return is_ours(info)  # of one stream the setup puts the subjects right
    return subjects == set(info.config.subjects or ())


def is_ours(info: StreamInfo) -> bool:
    """Whether it is of the log, and not another's stream that happens to have such a name."""
    subjects = info.config.subjects or ()
    return is_closed(info) or any(each.startswith("jobs.") for each in subjects)


def is_closed(info: StreamInfo) -> bool:
    return any(each.startswith(CLOSED_SUBJECT) for each in info.config.subjects or ())


def was_used(info: StreamInfo) -> bool:
    """Whether anything was ever stored in it."""
    return bool(info.state.last_seq >= (info.config.first_seq or 1))


def one_of(there: Sequence[StreamInfo]) -> StreamInfo | None:
    """The stream of a log that is one."""
    return next((info for info in there if info.config.name == JOBS and is_ours(info)), None)


def parts_of(there: Sequence[StreamInfo]) -> list[StreamInfo]:
    """The streams of a log that is several."""
    return [info for info in there if info.config.name != JOBS and is_ours(info)]


def count_of(there: Sequence[StreamInfo]) -> int:
    """How many streams it is, or is about to become; 1 where it has no others yet."""
    counts = [count for info in parts_of(there) if (count := _count_in(info))]
    return counts[0] if counts else 1


def _count_in(part: StreamInfo) -> int:
    """0 for one that an earlier version closed, which did not say."""
    subjects = part.config.subjects or [""]
    if not is_closed(part):
        return PARTITIONS // len(subjects)
    count = subjects[0].rpartition(".")[2]
    return int(count) if count.isdecimal() else 0


def closed_part(part: StreamInfo) -> str:
    """The subject of one of several that is closed: it says how many they are."""
    return f"{CLOSED_SUBJECT}.{part.config.name}.{_count_in(part)}"


def missing_streams(there: Sequence[StreamInfo], streams: LogStreams) -> list[LogStream]:
    """Of a log of several, some of which are there."""
    names = {part.config.name for part in parts_of(there)}
    return [each for each in streams.all() if names and log_stream_name(each) not in names]


def is_of_restore(there: Sequence[StreamInfo]) -> bool:
    """Whether a restore stores its events in several streams, or died at that."""
    one = one_of(there)
    if one is None or not is_closed(one):
        return False
    # An earlier version closed it as for a change, in which only one of the two has events.
    is_dealt = bool(one.state.messages) and any(map(was_used, parts_of(there)))
    return one.config.subjects == [RESTORE_SUBJECT] or is_dealt


def is_broken_off(there: Sequence[StreamInfo]) -> bool:
    """Whether a change to several streams is to be undone, as it met an event, and is not yet."""
    one = one_of(there)
    if one is not None and one.config.subjects == [UNDO_SUBJECT]:
        return True
    has_late = one is not None and is_closed(one) and one.state.messages
    return bool(has_late) or any(map(is_closed, parts_of(there)))


def _sentence(wanted: LogStreams, there: Sequence[StreamInfo]) -> str:
    if is_of_restore(there):
        return (
            "The event log is that of a restore that has not come to its end: let it end, or "
            "repeat it, into a new data folder and a NATS without the streams that it made."
        )
    missing = missing_streams(there, wanted)
    if missing and not odd_streams(there, wanted):
        names = ", ".join(map(log_stream_name, missing))
        return (
            f"The event log is not whole: NATS has no stream {names}, and its others were used. "
            "Restore a backup, into a new data folder and a NATS without the streams of the log."
        )
    what, remedy = _difference(wanted, there)
    return f"DARKROOM_LOG_STREAMS is {wanted.count}, but the event log is {what}: {remedy}."


def _difference(wanted: LogStreams, there: Sequence[StreamInfo]) -> tuple[str, str]:
    """What the log is, and the remedy."""
    for info in there:
        if not is_ours(info):
            what = f"not all there is: the stream {info.config.name} in NATS is another’s"
            return what, "remove that one, or give Darkroom an account of its own"
    one, count = one_of(there), count_of(there)
    if one is None:
        return f"{count} streams", _set_to(count)
    if is_broken_off(there):
        first = "" if wanted.count == 1 else "set it to 1 and "
        what = "one stream, which holds events, and was to become several"
        return what, f"{first}start the service, which leaves it one"
    if one.state.messages:
        return "one stream, which holds events", _set_to(1)
    if count not in {1, wanted.count}:
        what = f"about to become {count} streams"
        return what, f"set it to {count} and start the service, which changes that"
    return "one stream still", "start the service, which changes that"


def _set_to(count: int) -> str:
    return f"set it to {count}, or see “A log of several streams” in the operations guide"
