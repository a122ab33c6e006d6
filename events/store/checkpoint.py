"""The place that the projection has come to, moved with the rows that follow from it.

Each stream of the log has a row of its own; the one of a log that is one stream has the name that
it always had, and holds for the streams that have none yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from events.store.database import Database
from events.store.tables import CHECKPOINTS, RESULTS_CHECKPOINT
from events.streams.log_streams import LogPlace, LogStream, LogStreams


def checkpoint_name(stream: LogStream) -> str:
    one = stream.streams.count == 1
    return RESULTS_CHECKPOINT if one else f"{RESULTS_CHECKPOINT}-{stream.index}"


def checkpoint_columns(streams: LogStreams) -> list[sa.ColumnElement[int]]:
    """The positions by stream, each read by itself: for a query that has other rows."""
    return [_seq(stream) for stream in streams.all()]


def place_in(streams: LogStreams, seqs: Sequence[Any]) -> LogPlace:
    """Of what `checkpoint_columns` are in a row."""
    return streams.place([int(seq) for seq in seqs])


def _seq(stream: LogStream) -> sa.ColumnElement[int]:
    mine = CHECKPOINTS.alias()
    of_stream = mine.c.name == checkpoint_name(stream)
    own = sa.select(mine.c.seq).where(of_stream).scalar_subquery()
    return own if stream.streams.count == 1 else sa.func.coalesce(own, _begin(stream))


def _begin(stream: LogStream) -> sa.ColumnElement[int]:
    """Where a stream begins that goes on where the log was one: before its first message."""
    first, count = CHECKPOINTS.alias(), stream.streams.count
    rounded = (first.c.seq + (count - 1)) // count * count + stream.index
    return sa.select(rounded).where(first.c.name == RESULTS_CHECKPOINT).scalar_subquery()


async def read_checkpoint(database: Database, streams: LogStreams) -> LogPlace:
    [row] = await database.fetch(sa.select(*checkpoint_columns(streams)))
    return place_in(streams, row)


async def add_checkpoints(database: Database, streams: LogStreams) -> None:
    """Where a stream has no row yet it begins where the log was one stream."""
    if streams.count == 1:
        return  # it is made with the database
    async with database.write() as connection:
        for stream in streams.all():
            begin = {"name": checkpoint_name(stream), "seq": _begin(stream)}
            row = database.insert(CHECKPOINTS).values(begin)
            await connection.execute(row.on_conflict_do_nothing())


async def move_checkpoint(
    connection: AsyncConnection, stream: LogStream, expected: int, position: int
) -> bool:
    """False if it is not `expected`.

    It locks its row: a second process waits here, and finds it moved.
    """
    mine = CHECKPOINTS.c.name == checkpoint_name(stream)
    moving = sa.update(CHECKPOINTS).where(mine, CHECKPOINTS.c.seq == expected)
    return (await connection.execute(moving.values(seq=position))).rowcount > 0


async def replace_checkpoints(
    connection: AsyncConnection, streams: LogStreams, *, place: LogPlace, log_end: LogPlace
) -> bool:
    """Move all of them to `place`; False, and none is, if one is further than that.

    One that is further than the log's end does not count. Those that are moved stay until the
    transaction ends.
    """
    for stream in streams.all():
        await hold_checkpoint(connection, stream)
    names = {checkpoint_name(stream): stream for stream in streams.all()}
    query = sa.select(CHECKPOINTS.c.name, CHECKPOINTS.c.seq).where(CHECKPOINTS.c.name.in_(names))
    for name, seq in (await connection.execute(query)).all():
        if names[name].part(place) < seq <= names[name].part(log_end):
            return False
    for name, stream in names.items():
        move = sa.update(CHECKPOINTS).where(CHECKPOINTS.c.name == name)
        await connection.execute(move.values(seq=stream.part(place)))
    return True


async def hold_checkpoint(connection: AsyncConnection, stream: LogStream) -> None:
    """Let no other transaction apply events of the stream until this one ends."""
    mine = CHECKPOINTS.c.name == checkpoint_name(stream)
    held = sa.update(CHECKPOINTS).where(mine).values(seq=CHECKPOINTS.c.seq)
    await connection.execute(held)
