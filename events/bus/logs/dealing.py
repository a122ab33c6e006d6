"""The events of a log that is one stream, stored anew in several by a restore. Nobody else writes.

Each job's events stay in their order, and every new position stands behind the old ones.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from events.bus.bus import EXPECTED_STREAM, MESSAGE_ID, Bus
from events.bus.errors import NoAnswer, WrongLastSequence
from events.bus.logs.log_setup import RESTORE_SUBJECT
from events.bus.logs.splitting import first_sequence
from events.bus.puller import Message
from events.bus.streams import JOBS, REPUBLISH_FROM, job_id_in, log_stream_name, log_subjects
from events.errors import LogUnavailable
from events.streams.log_streams import LogStream, LogStreams

_API = "$JS.API.STREAM"
_BATCH = 64
"""Messages in memory at once, each of which may be a request of a megabyte."""
_STORE_TIMEOUT_S = 30.0


def closed(config: dict[str, Any]) -> dict[str, Any]:
    """How the one stream is while it is dealt out: its subjects are those of the others."""
    return _without(config, "republish") | {"subjects": [RESTORE_SUBJECT]}


async def deal_out(bus: Bus, streams: LogStreams, config: dict[str, Any]) -> None:
    """Store all that `JOBS` has in `streams` and remove it. `config`: as it was, not as `closed`.

    Raises LogUnavailable.
    """
    state = await bus.state(JOBS)
    first = first_sequence(streams, after=state.last_sequence)
    for stream in streams.all():
        # Without a limit meanwhile: one of them may have more than its part.
        made = _config(stream, config, max_bytes=-1) | {"first_seq": first}
        await bus.ask(f"{_API}.CREATE.{log_stream_name(stream)}", made)
    async for messages in _all(bus):
        await _store(bus, streams, messages)
    stored = 0
    for stream in streams.all():
        there = await bus.state(log_stream_name(stream))
        stored += there.messages
        if (most := config.get("max_bytes") or -1) > 0:
            limit = max(streams.bytes_each(most), there.size_bytes)
            made = _config(stream, config, max_bytes=limit) | {"first_seq": first}
            await bus.ask(f"{_API}.UPDATE.{log_stream_name(stream)}", made)
    if stored != state.messages:
        raise LogUnavailable(f"{stored} of {state.messages} events were stored.")
    await bus.ask(f"{_API}.DELETE.{JOBS}", b"")


def _config(stream: LogStream, config: dict[str, Any], *, max_bytes: int) -> dict[str, Any]:
    mine = {
        "name": log_stream_name(stream),
        "subjects": list(log_subjects(stream)),
        "max_bytes": max_bytes,
    }
    return config | mine


def _without(config: dict[str, Any], name: str) -> dict[str, Any]:
    return {each: value for each, value in config.items() if each != name}


async def _all(bus: Bus) -> AsyncGenerator[list[Message]]:
    after = 0
    while messages := await bus.listing(JOBS, REPUBLISH_FROM, after=after, count=_BATCH):
        yield messages
        after = messages[-1].sequence


async def _store(bus: Bus, streams: LogStreams, messages: Sequence[Message]) -> None:
    """Those of each job one after the other."""
    by_job: dict[str, list[Message]] = defaultdict(list)
    for message in messages:
        by_job[job_id_in(message.subject)].append(message)

    async def store(job_id: str) -> None:
        stream = log_stream_name(streams.all()[streams.of_job(job_id)])
        for message in by_job[job_id]:
            headers = {EXPECTED_STREAM: stream}
            if event_id := message.headers.get(MESSAGE_ID):
                headers[MESSAGE_ID] = event_id
            await bus.store(
                message.subject, message.data, timeout_s=_STORE_TIMEOUT_S, headers=headers
            )

    try:
        async with asyncio.TaskGroup() as group:
            for job_id in by_job:
                group.create_task(store(job_id))
    except* (LogUnavailable, NoAnswer, WrongLastSequence) as errors:
        raise LogUnavailable("An event could not be stored anew.") from errors.exceptions[0]
