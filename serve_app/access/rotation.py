"""A new key in the place of an old one, which works a little longer."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from events.store.records import ApiKey
from serve_app.access.api_keys import mint_successor
from serve_app.errors import ApiError, not_found

if TYPE_CHECKING:
    from events.store.keys import ApiKeys


async def rotate(
    keys: ApiKeys, key_id: str, *, grace: timedelta, now: datetime
) -> tuple[str, ApiKey]:
    """The new key: its text, to be shown once, and its row.

    Raises ApiError: 404, or 409 where the key has ended or was rotated already.
    """
    old = await keys.get(key_id)
    if old is None:
        raise no_such_key()
    if old.replaced_by is not None:
        raise _conflict(f"The key was rotated already; its successor is {old.replaced_by}.")
    if not old.is_live(now):
        raise _conflict("The key was revoked or has expired. Create a new one.")
    text, new = mint_successor(old, created_at=now)
    if not await keys.rotate(old, new, old_ends_at=now + grace):
        raise _conflict("The key was changed at the same time. Try again.")
    return text, new


def no_such_key() -> ApiError:
    return not_found("There is no such key.")


def _conflict(message: str) -> ApiError:
    return ApiError(409, "key_not_rotatable", message)
