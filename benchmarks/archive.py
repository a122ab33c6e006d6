"""Ended jobs through log, archive and read model: does anything grow that should not?

The jobs are cast (`_many_jobs.py`), ten waves of them, and each wave leaves the log for the
archive, as in the service. What is measured is the rate of that, the size of the log and the memory
of nats-server, and how long it takes to read a result, from its row as `GET` does, and a job's
history from the archive.

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
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import psutil

from actors.assembly import Archiving, open_archive, open_deliveries
from actors.upkeep.archiver import Archiver
from benchmarks._many_jobs import Mould, log_bytes, nats_server, publish, put_rows
from benchmarks._report import print_hardware, print_table
from events.bus.bus import Bus
from events.bus.jetstream_log import JetStreamLog
from events.ids import new_id
from events.log import utc_now
from events.result import result_of
from events.store.database import Database
from events.store.leases import Leases
from events.store.read_model import ReadModel
from settings.log import LogSettings
from storage.images import ImageStore
from storage.tokens import url_for

WAVES = 10
FEW = 1000
SAMPLE = 300
MB = 1e6


@dataclass
class Bench:
    """Log, archive and read model of one installation."""

    url: str
    nats: psutil.Process
    bus: Bus
    database: Database
    archiving: Archiving
    mould: Mould = field(default_factory=lambda: Mould(utc_now() - timedelta(hours=2)))

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
            period_s=60,
        )

    async def add(self, count: int) -> list[str]:
        """Jobs that ended two hours ago, in log and read model."""
        job_ids = [new_id() for _ in range(count)]
        first = await publish(self.url, self.mould, job_ids)
        await put_rows(self.database, self.mould.rows(job_ids, first_position=first))
        return job_ids

    async def archive(self) -> None:
        while await self.archiver.round():
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
    async with nats_server(folder, sync=sync) as (pid, url):
        bus = Bus(url, name="benchmark")
        bus.start()
        await bus.wait_connected()
        database = Database(f"sqlite+aiosqlite:///{folder / 'darkroom.sqlite3'}")
        await database.prepare()
        archiving = open_archive(database, ImageStore((folder / "images").as_uri()))
        try:
            await _run(Bench(url, psutil.Process(pid), bus, database, archiving), folder, count)
        finally:
            await database.close()
            await bus.close()


async def _run(bench: Bench, folder: Path, count: int) -> None:
    known = await bench.add(FEW)
    await bench.archive()
    few = [await _seconds(each, known) for each in (bench.result, bench.story)]
    rows = []
    for wave in range(WAVES):
        size = (count - FEW) // WAVES
        known += await bench.add(size)
        full = await bench.sizes()
        begun = time.monotonic()
        await bench.archive()
        rate = size / (time.monotonic() - begun)
        archived = FEW + (wave + 1) * size
        rows.append([f"{archived:,}", f"{rate:,.0f}/s", *full, *await bench.sizes()])
    columns = ("jobs", "archived", "log before", "nats-server", "log after", "nats-server")
    print_table("Jobs that left the log, wave by wave", columns, rows)
    many = [await _seconds(each, known) for each in (bench.result, bench.story)]
    print_table(
        f"Medians of {SAMPLE} reads, one after the other",
        ("what", f"of {FEW:,}", f"of {len(known):,}", "ratio"),
        [
            [what, f"{1e3 * before:.2f} ms", f"{1e3 * after:.2f} ms", f"{after / before:.2f}"]
            for what, before, after in zip(
                ("result, from its row", "history, from the archive"), few, many, strict=True
            )
        ],
    )
    files = list((folder / "images" / "archive").rglob("*.gz"))
    archive_bytes = sum(path.stat().st_size for path in files)
    print(
        f"The archive has {len(files)} files, {archive_bytes / len(known):.0f} bytes a job (their"
        " prompts are the same);"
        f" the read model {(folder / 'darkroom.sqlite3').stat().st_size / len(known):,.0f}."
    )


async def _seconds(read: Callable[[str], Awaitable[None]], job_ids: Sequence[str]) -> float:
    """The median time of a read."""
    times = []
    for job_id in random.sample(job_ids, SAMPLE):
        begun = time.perf_counter()
        await read(job_id)
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


if __name__ == "__main__":
    main()
