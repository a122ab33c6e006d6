"""Ended jobs through log, archive and read model: does anything grow that should not?

The jobs are cast (`harness/many_jobs.py`), ten waves of them, and each wave leaves the log for the
archive, as in the service. What is measured is the rate of that, the size of the log and the memory
of nats-server. Then how long it takes to read a result, from its row as `GET` does, and a job's
history from the archive, beside a second installation that has few jobs: the reads of the two take
turns, so that whatever else the machine does is in both. Last the rate of `darkroom rebuild`, with
one more wave that is in the log.

nats-server syncs every two minutes here: in bulk the jobs could not be put into one that syncs each
write, as that of `darkroom up` does (`--sync always`).

usage: python -m benchmarks.archive [--jobs 20000] [--sync always]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import psutil
from pydantic import SecretStr

from actors.archiving import Archiving, open_archive
from actors.assembly import open_deliveries
from actors.upkeep.archiver import Archiver
from benchmarks.harness.many_jobs import Mould, log_bytes, nats_server, publish, put_rows
from benchmarks.harness.report import console, print_hardware, print_table
from events.bus.bus import Bus
from events.bus.jetstream_log import JetStreamLog
from events.errors import LogUnavailable
from events.ids import new_id
from events.log import utc_now
from events.result import result_of
from events.retry import keep_trying
from events.store.database import Database
from events.store.leases import Leases
from events.store.maintenance.rebuild import Rebuild
from events.store.read_model import ReadModel
from serve_app.operations.places import archive_writer, open_places
from serve_app.operations.rebuilding import Rebuilding
from settings.log import LogSettings
from settings.stores import SQLITE_FILE, StoreSettings
from storage.images import ImageStore
from storage.tokens import url_for

WAVES = 10
FEW = 1000
SAMPLE = 300
MB = 1e6

Read = Callable[[str], Awaitable[None]]


@dataclass
class Bench:
    """Log, archive and read model of one installation."""

    folder: Path
    url: str
    nats: psutil.Process
    bus: Bus
    database: Database
    archiving: Archiving
    mould: Mould = field(default_factory=lambda: Mould(utc_now() - timedelta(hours=2)))
    job_ids: list[str] = field(default_factory=list)
    """Of the jobs that were added."""

    def __post_init__(self) -> None:
        self.log, deliveries = JetStreamLog(self.bus), open_deliveries(self.bus)
        self.read_model = ReadModel(self.database)
        self.history = self.archiving.history(log=self.log, deliveries=deliveries)
        self.archiver = Archiver(
            holder="benchmark",
            leases=Leases(self.database),
            log=self.log,
            deliveries=deliveries,
            hot_jobs=self.archiving.hot_jobs,
            segments=self.archiving.segments,
            archive=self.archiving.archive,
            writer=self.archiving.writer,
            settings=LogSettings(),
            lease_s=120,
            period_s=60,
        )

    async def add(self, count: int) -> None:
        """Jobs that ended two hours ago, in log and read model."""
        job_ids = [new_id() for _ in range(count)]
        first = await publish(self.url, self.mould, job_ids)
        await put_rows(self.database, self.mould.rows(job_ids, first_position=first))
        self.job_ids += job_ids

    async def archive(self) -> None:
        while await keep_trying(self.archiver.round, on=LogUnavailable, fields={}):
            pass

    async def result(self, job_id: str) -> None:
        job = await self.read_model.job(job_id)
        assert job is not None
        result_of(job, url_for("http://darkroom.test", b"secret")).body()

    async def story(self, job_id: str) -> None:
        assert len(await self.history.read(job_id)) == self.mould.events

    async def sizes(self) -> list[str]:
        """Of the log, of the memory of nats-server."""
        size_bytes = await log_bytes(self.url)
        return [f"{size_bytes / MB:.1f} MB", f"{self.nats.memory_info().rss / MB:.0f} MB"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--sync", default="2m")
    asked = parser.parse_args()
    print_hardware()
    with tempfile.TemporaryDirectory(prefix="darkroom-") as name:
        asyncio.run(_measure(Path(name), asked.jobs, asked.sync))


async def _measure(folder: Path, count: int, sync: str) -> None:
    async with _installation(folder / "many", sync) as many:
        await _move_waves(many, count // WAVES)
        async with _installation(folder / "few", sync) as few:
            await few.add(FEW)
            await few.archive()
            await _compare_reads(few, many)
        _print_sizes(many)
        await many.add(count // WAVES)
        await _measure_rebuild(many)


@asynccontextmanager
async def _installation(folder: Path, sync: str) -> AsyncGenerator[Bench]:
    await asyncio.to_thread(folder.mkdir)
    async with nats_server(folder, sync=sync) as (pid, url):
        bus = Bus(url, name="benchmark")
        bus.start()
        await bus.wait_connected()
        stores = StoreSettings(data_dir=folder)
        database = Database(stores.effective_database_url)
        await database.prepare()
        archiving = open_archive(database, ImageStore(stores.effective_images_url))
        try:
            yield Bench(folder, url, psutil.Process(pid), bus, database, archiving)
        finally:
            await database.close()
            await bus.close()


async def _move_waves(bench: Bench, size: int) -> None:
    rows = []
    began = time.monotonic()
    for _ in range(WAVES):
        await bench.add(size)
        full = await bench.sizes()
        begun = time.monotonic()
        await bench.archive()
        rate = size / (time.monotonic() - begun)
        rows.append([f"{len(bench.job_ids):,}", f"{rate:,.0f}/s", *full, *await bench.sizes()])
        minutes = (time.monotonic() - began) / 60
        console.print(f"{minutes:.1f} min: " + ", ".join(rows[-1]), highlight=False)
    columns = ("jobs", "archived", "log before", "nats-server", "log after", "nats-server")
    print_table("Jobs that left the log, wave by wave", columns, rows)


async def _compare_reads(few: Bench, many: Bench) -> None:
    rows = []
    for what, before, after in (
        ("result, from its row", few.result, many.result),
        ("history, from the archive", few.story, many.story),
    ):
        small, large = await _medians((before, few.job_ids), (after, many.job_ids))
        rows.append(
            [what, f"{1e3 * small:.2f} ms", f"{1e3 * large:.2f} ms", f"{large / small:.2f}"]
        )
    print_table(
        f"Medians of {SAMPLE} reads, taking turns",
        ("what", f"of {len(few.job_ids):,}", f"of {len(many.job_ids):,}", "ratio"),
        rows,
    )


async def _medians(*reads: tuple[Read, Sequence[str]]) -> list[float]:
    """The median time of each kind of read, of the jobs beside it."""
    times: list[list[float]] = [[] for _ in reads]
    turns = list(range(len(reads)))
    for _ in range(SAMPLE):
        random.shuffle(turns)
        for turn in turns:
            read, job_ids = reads[turn]
            job_id = random.choice(job_ids)
            begun = time.perf_counter()
            await read(job_id)
            times[turn].append(time.perf_counter() - begun)
    return [statistics.median(each) for each in times]


def _print_sizes(bench: Bench) -> None:
    files = list((bench.folder / "images" / "archive").rglob("*.gz"))
    archive_bytes = sum(path.stat().st_size for path in files)
    database_bytes = (bench.folder / SQLITE_FILE).stat().st_size
    jobs = len(bench.job_ids)
    console.print(
        f"The archive has {len(files)} files, {archive_bytes / jobs:.0f} bytes a job (their prompts"
        f" are the same); the read model {database_bytes / jobs:,.0f}.",
        highlight=False,
    )


async def _measure_rebuild(bench: Bench) -> None:
    """From log and archive, as `darkroom rebuild` does."""
    step = len(bench.job_ids) // WAVES
    next_at = step

    async def on_batch() -> None:
        nonlocal next_at, log_read
        rebuilt = rebuilding.rebuilt
        if not rebuilt.from_archive:
            log_read = time.monotonic()
        read = rebuilt.from_log + rebuilt.from_archive
        if read >= next_at:
            next_at += step
            minutes = (time.monotonic() - began) / 60
            console.print(f"{minutes:.1f} min: {read:,} jobs read", highlight=False)

    stores = StoreSettings(data_dir=bench.folder)
    async with open_places(LogSettings(nats_url=SecretStr(bench.url)), stores) as places:
        writer = archive_writer(places, bench.database)
        tables = Rebuild(bench.database)
        rebuilding = Rebuilding(places, tables, writer=writer, on_batch=on_batch)
        began = log_read = time.monotonic()
        await rebuilding.run()
        ended = time.monotonic()
    from_log, from_archive = rebuilding.rebuilt.from_log, rebuilding.rebuilt.from_archive
    parts = [
        ("log", from_log, log_read - began),
        ("archive, and put in place", from_archive, ended - log_read),
        ("both", from_log + from_archive, ended - began),
    ]
    rows = [(name, f"{n:,}", f"{s:.1f} s", f"{n / s:,.0f}/s") for name, n, s in parts]
    print_table("A rebuild of the read model", ("from", "jobs", "took", "rate"), rows)
    assert from_log + from_archive == len(bench.job_ids)


if __name__ == "__main__":
    main()
