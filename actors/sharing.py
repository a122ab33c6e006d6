"""Shares of the streams of the log, as the roles that are several processes have them."""

from __future__ import annotations

import os
import socket

from actors.upkeep.shares import Shares
from events.ids import new_id
from events.store.database import Database
from events.store.leases import Leases
from settings.settings import Settings


def stream_shares(
    name: str,
    settings: Settings,
    database: Database,
    *,
    processes: int,
    all_without_database: bool = False,
) -> Shares | None:
    """None where one process has all streams: then there are no leases."""
    if processes == 1:
        return None
    return Shares(
        name,
        leases=Leases(database),
        holder=lease_holder(),
        parts=settings.log.streams,
        seats=processes,
        lease_s=settings.dispatch.dispatcher_lease_s,
        all_without_database=all_without_database,
    )


def lease_holder() -> str:
    """A name for lease rows, unique to this process."""
    return f"{socket.gethostname()}:{os.getpid()}:{new_id()}"
