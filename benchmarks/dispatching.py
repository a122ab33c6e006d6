"""Measures the cost of dispatching a job, by the number of workers and owners.

The real dispatcher runs in its own process with a nats-server, without Ray, HTTP and projection.
Jobs are written to the log and the queue as bytes, at a rate or all at once. The workers are
simulated and only acknowledge their entries. The figures are the CPU time minus the CPU time of the
idle process. nats-server syncs its files every two minutes here, because a dispatch does not wait
for the disk.

usage: python -m benchmarks.dispatching [--workers 16,1000] [--owners 1,1000] [--jobs 5000]
           [--rate 0] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import nats
from nats.aio.client import Client

from benchmarks.harness.machine import Family
from benchmarks.harness.many_jobs import Mould, nats_server
from benchmarks.harness.part import JOB_S, JOB_WRITES
from benchmarks.harness.report import Cell, Report
from events.bus.streams import JOBS, QUEUE, job_subject, queue_subject
from events.ids import lane_of, new_id
from events.log import utc_now
from examples.service import ROOT

JOB_LASTS_S = 0.05
_READY_TIMEOUT_S = 120.0
_IDLE_S = 6.0
_TIMEOUT_S = 3600.0
_PERIOD_S = 0.05


def main() -> None:
    args = _arguments()
    report = Report("dispatching")
    asyncio.run(_run(report, args))
    report.write(args.json)


async def _run(report: Report, args: argparse.Namespace) -> None:
    rows: list[list[Cell]] = []
    for workers, owners in itertools.product(args.workers, args.owners):
        async with _dispatching(workers) as bench:
            rest = await bench.at_rest()
            cost = await bench.work_off(args.jobs, owners=owners, rate_per_s=args.rate)
        rows.append(
            [f"{workers:,} workers", owners, args.jobs, *rest, *cost],
        )
    report.table(
        "CPU of a dispatch: µs, less what there is at rest",
        {
            "workers": "",
            "owners": ",.0f",
            "jobs": ",.0f",
            "cores at rest": ".3f",
            "of nats-server": ".3f",
            "dispatcher µs": ".0f",
            "nats-server µs": ".0f",
            "seconds": ".1f",
        },
        rows,
    )


@dataclass
class Bench:
    client: Client
    dispatcher: Family
    server: Family
    cores: tuple[float, float] = (0.0, 0.0)

    def cpu_s(self) -> tuple[float, float]:
        return sum(self.dispatcher.cpu_s().values()), sum(self.server.cpu_s().values())

    async def at_rest(self) -> tuple[float, float]:
        before, began = self.cpu_s(), time.monotonic()
        await asyncio.sleep(_IDLE_S)
        took_s = time.monotonic() - began
        dispatcher, server = (
            (now - then) / took_s for then, now in zip(before, self.cpu_s(), strict=True)
        )
        self.cores = dispatcher, server
        return self.cores

    async def work_off(self, jobs: int, *, owners: int, rate_per_s: float) -> list[Cell]:
        """Dispatch the jobs. Return the CPU time of dispatcher and nats-server per job in µs, and
        the total time in seconds.
        """
        mine = [(new_id(), f"owner-{number % owners}") for number in range(jobs)]
        moulds = {owner: Mould(utc_now(), is_open=True, owner=owner) for _, owner in mine}
        for job_id, owner in mine:
            [payload] = moulds[owner].payloads(job_id)
            await self.client.publish(job_subject(job_id), payload)
        await self._until(JOBS, stored=jobs, left=jobs)
        before, began = self.cpu_s(), time.monotonic()
        deadline = (utc_now() + timedelta(hours=1)).isoformat().encode()
        for number, (job_id, owner) in enumerate(mine):
            if rate_per_s:
                await asyncio.sleep(max(0.0, began + number / rate_per_s - time.monotonic()))
            await self.client.publish(queue_subject("default", lane_of(owner), job_id), deadline)
        await self._until(QUEUE, stored=jobs, left=0)
        took_s = time.monotonic() - began
        costs: list[Cell] = [
            1e6 * max(0.0, now - then - cores * took_s) / jobs
            for then, now, cores in zip(before, self.cpu_s(), self.cores, strict=True)
        ]
        return [*costs, took_s]

    async def _until(self, stream: str, *, stored: int, left: int) -> None:
        """Wait until the stream has stored `stored` messages in total and still has `left`
        messages.
        """
        give_up_at = time.monotonic() + _TIMEOUT_S
        while True:
            state = (await self.client.jetstream().stream_info(stream)).state
            if state.last_seq >= stored and state.messages == left:
                return
            assert time.monotonic() < give_up_at, f"{stream}: {state}"
            await asyncio.sleep(_PERIOD_S)


@asynccontextmanager
async def _dispatching(workers: int) -> AsyncGenerator[Bench]:
    with tempfile.TemporaryDirectory(prefix="darkroom-") as name:
        folder = Path(name)
        (folder / "data").mkdir()
        async with nats_server(folder, sync="2m") as (pid, url):
            arguments = (sys.executable, "-m", "benchmarks.harness.part", "dispatcher")
            with (folder / "log").open("wb") as log:
                process = await asyncio.create_subprocess_exec(
                    *arguments,
                    env=_environment(folder, url, workers),
                    cwd=ROOT,
                    stdout=log,
                    stderr=log,
                )
            client = await nats.connect(url, error_cb=_note_error)
            try:
                await _ready(client, folder / "log")
                yield Bench(client, Family(process.pid), Family(pid))
            finally:
                await client.close()
                process.terminate()
                await process.wait()


async def _note_error(_error: Exception) -> None:
    """Ignore the error. The server has not started yet, and `connect` tries again."""


async def _ready(client: Client, log: Path) -> None:
    """Wait until the queue has a consumer, and some seconds more."""
    give_up_at = time.monotonic() + _READY_TIMEOUT_S
    while True:
        try:
            info = await client.jetstream().stream_info(QUEUE)
            if info.state.consumer_count:
                break
        except nats.js.errors.Error:
            pass
        assert time.monotonic() < give_up_at, await asyncio.to_thread(log.read_text)
        await asyncio.sleep(_PERIOD_S)
    await asyncio.sleep(_IDLE_S)


def _environment(folder: Path, nats_url: str, workers: int) -> dict[str, str]:
    kept = {name: each for name, each in os.environ.items() if not name.startswith("DARKROOM_")}
    return {
        **kept,
        "DARKROOM_NATS_URL": nats_url,
        "DARKROOM_DATA_DIR": str(folder / "data"),
        "DARKROOM_MODELS_DIR": str(ROOT / "models"),
        "DARKROOM_SECRET": "a secret of sixteen",
        "DARKROOM_LOG_MAX_BYTES": str(2**33),
        "DARKROOM_OWNER_SLOTS_KEPT_FREE": "0",
        "DARKROOM_MIN_WORKERS": str(workers),
        "DARKROOM_MAX_WORKERS": str(workers),
        "DARKROOM_JOBS_PER_WORKER": "4",
        JOB_S: str(JOB_LASTS_S),
        JOB_WRITES: "",
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dispatching")
    parser.add_argument("--workers", type=_numbers, default=[16, 1_000])
    parser.add_argument("--owners", type=_numbers, default=[1, 1_000])
    parser.add_argument("--jobs", type=int, default=5_000)
    parser.add_argument("--rate", type=float, default=0.0, help="jobs a second; 0: all at once")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return sorted(map(int, filter(None, text.split(","))))


if __name__ == "__main__":
    main()
