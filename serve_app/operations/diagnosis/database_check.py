"""The database: whether it answers, has its tables, and which time it has."""

from __future__ import annotations

from datetime import UTC, datetime

from events.errors import DatabaseUnavailable
from events.log import utc_now
from events.store.database import Database
from events.store.keys import ApiKeys
from serve_app.operations.diagnosis.findings import Finding, Level, clock_finding
from settings.stores import SQLITE_FILE, StoreSettings

_TIMEOUT_S = 5.0


class DatabaseCheck:
    part = "database"

    def __init__(self, stores: StoreSettings) -> None:
        self._stores = stores

    async def run(self) -> list[Finding]:
        path = self._stores.data_dir / SQLITE_FILE
        if self._stores.database_url is None and not path.exists():
            text = f"There is none at {path} yet; the first start makes it."
            return [Finding(self.part, Level.NOTE, text)]
        database = Database(self._stores.effective_database_url, busy_timeout_s=_TIMEOUT_S)
        try:
            return await self._looked_at(database)
        finally:
            await database.close()

    async def _looked_at(self, database: Database) -> list[Finding]:
        try:
            before = utc_now()
            told_at = datetime.fromtimestamp(await database.time_s(), UTC)
            asked_at = before + (utc_now() - before) / 2
        except DatabaseUnavailable as error:
            remedy = "See that DARKROOM_DATABASE_URL names a server that runs and takes this user."
            if self._stores.database_url is None:
                remedy = f"See that {self._stores.data_dir} is a disk that works and has room."
            return [Finding(self.part, Level.ERROR, f"{error} {_why(error)}".strip(), remedy)]
        clock = clock_finding("the database", told_at, asked_at)
        try:
            keys = await ApiKeys(database).all(limit=1)
        except DatabaseUnavailable:
            text = "It answers, and has not the tables of this version."
            remedy = "A start of the service makes them; its user must be allowed to."
            return [Finding(self.part, Level.ERROR, text, remedy), clock]
        if not keys:
            text = "It answers, and has no API key: nobody can ask for anything."
            remedy = "Make one with `darkroom keys create`, or start `darkroom up`."
            return [Finding(self.part, Level.WARNING, text, remedy), clock]
        return [Finding(self.part, Level.OK, "It answers, with its tables."), clock]


def _why(error: DatabaseUnavailable) -> str:
    """What the driver says, which names no password."""
    lines = str(getattr(error.__cause__, "orig", None) or error.__cause__ or "").splitlines()
    return lines[0] if lines else ""
