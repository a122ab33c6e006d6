"""The history of a run once the service is idle."""

from __future__ import annotations

import asyncio
import subprocess
import time

from nats.errors import Error as NatsError

from events.errors import DatabaseUnavailable
from examples.service import DARKROOM
from storage.images import ImageStoreError
from tests.faults.checker.gather import gather
from tests.faults.checker.history import Folded, History, from_record
from tests.faults.checker.invariants import violations
from tests.faults.checker.leftovers import beside_the_service
from tests.faults.checker.record import Record, read_record
from tests.faults.parts.parts import Parts

_QUIET_S = 90.0
_VERIFY_S = 300.0
_LOOK_AGAIN_S = 3.0
"""The pause between two reads of the stored data, until all invariants hold."""


async def settled_history(parts: Parts, record: Record) -> History:
    """Return the history once all invariants hold, or after the time-out."""
    history = await _settled(parts, record)
    try:
        history.disagreements = await _last_disagreements(parts)
    except subprocess.TimeoutExpired:
        history.disagreements = [f"it took longer than {_VERIFY_S:g} s"]
    return history


async def _settled(parts: Parts, record: Record) -> History:
    give_up_at = time.monotonic() + _QUIET_S
    while True:
        is_last = time.monotonic() > give_up_at
        try:
            history = await _gathered(parts, record)
        except (NatsError, OSError, DatabaseUnavailable, ImageStoreError):
            if is_last:
                raise
        else:
            if is_last or not any(violations(Folded(history)).values()):
                return history
        await asyncio.sleep(_LOOK_AGAIN_S)


async def _gathered(parts: Parts, record: Record) -> History:
    history = from_record(read_record(record.path))
    async with parts.nats.client() as client:
        await gather(history, client, parts.images, database_url=parts.database_url)
        history.leftovers = await beside_the_service(parts, client)
    return history


async def _last_disagreements(parts: Parts) -> list[str]:
    """Return the remaining disagreements: the janitor, once restarted, removes files of late
    writers.
    """
    give_up_at = time.monotonic() + _QUIET_S
    while True:
        found = await asyncio.to_thread(_verified, parts)
        if not found or time.monotonic() > give_up_at:
            return found
        await asyncio.sleep(_LOOK_AGAIN_S)


def _verified(parts: Parts) -> list[str]:
    """Return the report of `darkroom verify --images`."""
    done = subprocess.run(
        [DARKROOM, "verify", "--images", "--json"],
        env=parts.environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=_VERIFY_S,
    )
    if done.returncode == 0:
        return []
    return [f"exit code {done.returncode}: {done.stdout[:4000]} {done.stderr[:500]}"]
