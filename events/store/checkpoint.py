"""The position that the projection has come to, moved with the rows that follow from it."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from events.store.tables import CHECKPOINTS, RESULTS_CHECKPOINT

_MINE = CHECKPOINTS.c.name == RESULTS_CHECKPOINT


async def move_checkpoint(connection: AsyncConnection, expected: int, position: int) -> bool:
    """False if it is not `expected`.

    It locks its row: a second process waits here, and finds it moved.
    """
    moving = sa.update(CHECKPOINTS).where(_MINE, CHECKPOINTS.c.seq == expected)
    return (await connection.execute(moving.values(seq=position))).rowcount > 0


async def hold_checkpoint(connection: AsyncConnection) -> None:
    """Let no other transaction apply events until this one ends."""
    held = sa.update(CHECKPOINTS).where(_MINE).values(seq=CHECKPOINTS.c.seq)
    await connection.execute(held)
