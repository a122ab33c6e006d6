"""The options that a key has set for its later requests, where a protocol has it so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from events.store.database import Database
from events.store.tables import KEY_OPTIONS


class KeyOptions:
    """Every method raises DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._put = database.upsert(KEY_OPTIONS)
        self._options = database.point_read(KEY_OPTIONS.c.options, by=KEY_OPTIONS.c.key_id)

    async def of(self, key_id: str) -> dict[str, Any]:
        """Empty where none was set."""
        text = await self._options(key_id)
        options: dict[str, Any] = {} if text is None else json.loads(text)
        return options

    async def put(self, key_id: str, options: Mapping[str, Any], at: datetime) -> None:
        """In the place of all that there were."""
        row = {"key_id": key_id, "options": json.dumps(options), "changed_at": at}
        async with self._database.write() as connection:
            await connection.execute(self._put, [row])
