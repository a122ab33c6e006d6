"""Checks of the event log, the database, the image store and the disks."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

from events.bus.bus import Bus
from events.bus.health import JetStreamHealth, ServerReport, describe_server
from events.errors import DatabaseUnavailable, LogUnavailable
from events.ids import new_id
from events.log import utc_now
from events.store.database import Database
from events.store.keys import ApiKeys
from operations.diagnosis.findings import Finding, Level, clock_finding, in_daemon, size
from operations.stores import open_bus
from settings.log import LogSettings
from settings.stores import SQLITE_FILE, StoreSettings
from storage.file_names import UPLOADS
from storage.images import ImageStore, ImageStoreError

_DATABASE_TIMEOUT_S = 5.0
_LITTLE_LOG_BYTES = 256 * 1024**2
_PROBE_CONTENT = b"darkroom doctor"
_LITTLE_DISK_BYTES = 2 * 1024**3
_VERY_LITTLE_DISK_BYTES = 128 * 1024**2


class LogCheck:
    part = "event log"

    def __init__(
        self,
        log: LogSettings,
        stores: StoreSettings,
        *,
        is_up: bool,
        full_ratio: float,
        timeout_s: float = 10.0,
    ) -> None:
        """`is_up` is whether `darkroom up` runs on this machine.

        New jobs are refused if the log is filled above `full_ratio`.
        """
        self._log = log
        self._stores = stores
        self._is_up = is_up
        self._full_ratio = full_ratio
        self._timeout_s = timeout_s

    async def run(self) -> list[Finding]:
        if self._log.nats_url is None and not self._is_up:
            text = "`darkroom up` does not run here, so its nats-server does not run."
            return [Finding(self.part, Level.NOTE, text)]
        try:
            async with open_bus(self._log, self._stores, timeout_s=self._timeout_s) as bus:
                return await self._examine(bus)
        except LogUnavailable as error:
            remedy = (
                f"See {self._stores.nats_dir / 'nats-server.log'}."
                if self._log.nats_url is None
                else "Check that a server runs at DARKROOM_NATS_URL and accepts the user and "
                "password in it, and that DARKROOM_NATS_CA_FILE contains the authority of the "
                "server's certificate."
            )
            return [Finding(self.part, Level.ERROR, f"NATS cannot be used: {error}", remedy)]

    async def _examine(self, bus: Bus) -> list[Finding]:
        report = await describe_server(bus, replicas=self._log.replicas)
        if not report.has_jetstream:
            text = "NATS answers, but JetStream is not available to this user."
            remedy = (
                "Enable JetStream in the configuration of NATS, and for the account of this user."
            )
            return [Finding(self.part, Level.ERROR, text, remedy)]
        found = [
            *await self._writes(bus, report),
            *self._streams(report),
            *self._free_space(report),
        ]
        if report.server_time is not None and report.local_time is not None:
            found.append(clock_finding("NATS", report.server_time, report.local_time))
        return found

    async def _writes(self, bus: Bus, report: ServerReport) -> list[Finding]:
        """Test whether the log accepts writes, unless it lacks streams."""
        if report.missing:
            return []
        health = JetStreamHealth(bus, ready_period_s=0, max_staleness_s=0)
        if (refusal := await health.ready()) is None:
            return []
        remedy = (
            "Free some space, or make the folder of NATS writable. Then `darkroom up` restarts its "
            "nats-server; restart a NATS server of your own."
        )
        return [Finding(self.part, Level.ERROR, refusal, remedy)]

    def _streams(self, report: ServerReport) -> list[Finding]:
        if report.missing:
            text = f"Streams are missing: {', '.join(report.missing)}."
            remedy = (
                "A start of the service creates the streams. If the service runs, see "
                "action=prepare in its log."
            )
            return [Finding(self.part, Level.ERROR, text, remedy)]
        found = [
            Finding(
                self.part,
                Level.WARNING,
                f"The stream {name} differs from that of this version: {', '.join(members)}.",
                "A start of the service updates the stream. If it does not, see action=prepare in "
                "the log.",
            )
            for name, members in report.differing.items()
        ]
        text = (
            f"NATS answers, with all {len(report.streams)} streams; {report.queued} jobs wait or "
            f"run, {report.callbacks} callbacks wait."
        )
        return found or [Finding(self.part, Level.OK, text)]

    def _free_space(self, report: ServerReport) -> list[Finding]:
        found = []
        if report.log is not None and report.log.fill >= self._full_ratio:
            text = f"The event log is {report.log.fill:.0%} full, so new jobs are refused."
            remedy = "See “Fill of the log” in the operations guide."
            found.append(Finding(self.part, Level.ERROR, text, remedy))
        if report.free_bytes is not None and report.free_bytes < _LITTLE_LOG_BYTES:
            text = f"The account at NATS has {size(report.free_bytes)} left for all streams."
            found.append(
                Finding(self.part, Level.WARNING, text, "Raise max_file of the NATS account.")
            )
        return found


class DatabaseCheck:
    part = "database"

    def __init__(self, stores: StoreSettings) -> None:
        self._stores = stores

    async def run(self) -> list[Finding]:
        path = self._stores.data_dir / SQLITE_FILE
        if self._stores.database_url is None and not path.exists():
            text = f"There is no database at {path} yet. The first start creates it."
            return [Finding(self.part, Level.NOTE, text)]
        database = Database(self._stores.effective_database_url, busy_timeout_s=_DATABASE_TIMEOUT_S)
        try:
            return await self._examine(database)
        finally:
            await database.close()

    async def _examine(self, database: Database) -> list[Finding]:
        try:
            before = utc_now()
            server_time = datetime.fromtimestamp(await database.time_s(), UTC)
            local_time = before + (utc_now() - before) / 2
        except DatabaseUnavailable as error:
            remedy = "Check that a server runs at DARKROOM_DATABASE_URL and accepts the user."
            if self._stores.database_url is None:
                remedy = (
                    f"Check that {self._stores.data_dir} is on a disk that works and has free "
                    "space."
                )
            return [Finding(self.part, Level.ERROR, f"{error} {_why(error)}".strip(), remedy)]
        clock = clock_finding("the database", server_time, local_time)
        try:
            keys = await ApiKeys(database).all(limit=1)
        except DatabaseUnavailable:
            text = "The database answers, but lacks the tables of this version."
            remedy = (
                "A start of the service creates the tables. The database user needs the permission "
                "to do so."
            )
            return [Finding(self.part, Level.ERROR, text, remedy), clock]
        if not keys:
            text = "The database answers, but contains no API key, so every request is refused."
            remedy = "Create a key with `darkroom keys create`, or start `darkroom up`."
            return [Finding(self.part, Level.WARNING, text, remedy), clock]
        return [Finding(self.part, Level.OK, "The database answers, and has its tables."), clock]


def _why(error: DatabaseUnavailable) -> str:
    """Return the message of the driver, which contains no password."""
    lines = str(getattr(error.__cause__, "orig", None) or error.__cause__ or "").splitlines()
    return lines[0] if lines else ""


class ImageStoreCheck:
    part = "image store"

    def __init__(self, stores: StoreSettings) -> None:
        self._stores = stores

    async def run(self) -> list[Finding]:
        url = self._stores.effective_images_url
        if (folder := local_folder(url)) is not None and not await in_daemon(folder.is_dir):
            text = f"There is no folder {folder} yet. The first image creates it."
            return [Finding(self.part, Level.NOTE, text)]
        try:
            store = ImageStore(url)
            local_time = utc_now()
            stored_at = await _stored_at(store)
        except Exception as error:  # noqa: BLE001 - obstore raises various errors for an incomplete URL
            remedy = f"Check that {folder} is writable."
            if folder is None:
                remedy = (
                    "Check that the bucket of DARKROOM_IMAGES_URL exists, and that the variables "
                    "of its provider (AWS_…, GOOGLE_…, AZURE_…) allow reads and writes."
                )
            text = f"{_bare(url)} cannot be used: {_first_line(error).replace(url, _bare(url))}"
            return [Finding(self.part, Level.ERROR, text, remedy)]
        found = [Finding(self.part, Level.OK, f"{_bare(url)} stores, returns and removes files.")]
        if folder is None and stored_at is not None:
            # `MOST_SKEW_S` covers the duration of the request, and stores that give whole seconds.
            found.append(clock_finding("the image store", stored_at, local_time))
        return found


async def _stored_at(store: ImageStore) -> datetime | None:
    """Store, read and remove a file. Return its time by the clock of the store.

    If this process dies, the janitor removes the file. Raises ImageStoreError.
    """
    folder = f"{UPLOADS}/doctor/{new_id()}"
    key = f"{folder}/probe"
    await store.put(key, _PROBE_CONTENT)
    try:
        if await store.get(key) != _PROBE_CONTENT:
            raise ImageStoreError("the store returned other bytes than were stored")
        async for files in store.files(folder):
            for file in files:
                return file.stored_at
        return None
    finally:
        await store.delete(key)


class DiskSpaceCheck:
    part = "disk"

    def __init__(self, folders: Sequence[Path]) -> None:
        """`folders` are the data folders of this machine. They need not exist yet."""
        self._folders = folders

    async def run(self) -> list[Finding]:
        return await in_daemon(self._look)

    def _look(self) -> list[Finding]:
        found: dict[int, Finding] = {}
        for folder in self._folders:
            there = next(each for each in (folder, *folder.parents) if each.exists())
            found.setdefault(there.stat().st_dev, self._free_space(there))
        return list(found.values())

    def _free_space(self, folder: Path) -> Finding:
        free = shutil.disk_usage(folder).free
        text = f"{size(free)} are free at {folder}."
        if free >= _LITTLE_DISK_BYTES:
            return Finding(self.part, Level.OK, text)
        level = Level.ERROR if free < _VERY_LITTLE_DISK_BYTES else Level.WARNING
        remedy = (
            "Free some space, or lower DARKROOM_RETENTION_DAYS. Nothing can be stored on a full "
            "disk."
        )
        return Finding(self.part, level, text, remedy)


def local_folder(url: str) -> Path | None:
    """Return the folder of an image store on this machine, or None for another image store."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _bare(url: str) -> str:
    """Return the URL without the parts that may be secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
