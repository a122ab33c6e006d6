"""Replaces a key with a new one; the old key works for a while longer."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from events.store.records import ApiKey
from serve_app.access.api_keys import mint_successor
from serve_app.refusals import KeyNotFound, KeyNotRotatable

if TYPE_CHECKING:
    from events.store.keys import ApiKeys


async def rotate(
    keys: ApiKeys, key_id: str, *, grace: timedelta, now: datetime
) -> tuple[str, ApiKey]:
    """Make the new key: its text, to be shown once, and its row.

    Raises KeyNotFound, and KeyNotRotatable where the key has ended or was rotated already.
    """
    old = await keys.get(key_id)
    if old is None:
        raise KeyNotFound
    if old.replaced_by is not None:
        raise KeyNotRotatable(f"The key was rotated already; its successor is {old.replaced_by}.")
    if not old.is_live(now):
        raise KeyNotRotatable("The key was revoked or has expired. Create a new one.")
    text, new = mint_successor(old, created_at=now)
    if not await keys.rotate(old, new, old_ends_at=now + grace):
        raise KeyNotRotatable("The key was changed at the same time. Try again.")
    return text, new
