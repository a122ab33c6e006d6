"""API keys of those who submit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from tests.faults.parts.parts import Parts
from tests.faults.parts.receivers import Receivers


async def keys_of(parts: Parts, receivers: Receivers, owners: Iterable[str]) -> dict[str, str]:
    """A new key for each owner, whose callbacks the receivers know from now on."""
    keys = {}
    for owner in owners:
        made = await asyncio.to_thread(parts.darkroom, "keys", "create", owner)
        keys[owner], secret = made.split()
        receivers.accept_secret(owner, secret)
    return keys
