"""Measures how 30 hanging receivers of 100 delay 10,000 callbacks to the others.

A nats-server, the callbacks role with its default settings, and the receivers run in separate
processes. The jobs are already in the log. The latency of a callback counts from the time at which
it is put on the queue. Callbacks become due over a minute, and then, in a second run with new
processes, all at once. A hanging receiver should get few attempts after its circuit breaker has
opened. So the benchmark counts the share of these attempts among all attempts between the first
opening of a breaker and the last delivery to a healthy receiver. The time of an opening is
computed: a breaker opens when the configured number of attempts has timed out.

usage: python -m benchmarks.callbacks
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from actors.callbacks.receivers import BreakerLimits
from actors.callbacks.sender import TIMEOUT_S
from benchmarks.harness.receivers import address
from benchmarks.harness.report import print_hardware, print_table
from events.bus.bus import Bus
from events.bus.jetstream_log import JetStreamLog
from events.bus.queues import CallbackQueue
from events.decisions import Cancel, Submit
from events.ids import new_id
from events.log import JobWriter
from events.types import Flavour, Submitted
from local.nats_server import NatsServer

CALLBACKS = 10_000
HOSTS = 100
HUNG = 30
AT_ONCE = 64
GIVE_UP_S = 600.0

_ROLE = """
import asyncio
from actors.roles.callbacks import run
from settings.settings import Settings
asyncio.run(run(Settings.load()))
"""


@dataclass(frozen=True, slots=True)
class Arrival:
    host: int
    job_id: str
    at: float

    @classmethod
    def parse(cls, line: str) -> Arrival:
        host, webhook_id, at = line.split()
        return cls(int(host), webhook_id.removeprefix("msg_"), float(at))


@dataclass(frozen=True, slots=True)
class Outcome:
    due: dict[str, float]
    """The time at which each callback to a healthy host became due, by job id."""
    arrivals: list[Arrival]
    """Every attempt, to healthy and to hanging hosts."""
    role_cpu_s: float


def main() -> None:
    print_hardware()
    for due, over_s in (("in 60 s", 60.0), ("at once", 0.0)):
        print_table(
            f"{CALLBACKS:,} callbacks due {due}, to {HOSTS} hosts of which {HUNG} hang",
            ("figure", "value"),
            asyncio.run(_run(over_s)),
        )
        print(f"load after this run {os.getloadavg()[0]:.1f}", flush=True)


async def _run(over_s: float) -> list[list[str]]:
    with tempfile.TemporaryDirectory(prefix="darkroom-") as name:
        folder = Path(name)
        server = NatsServer(folder / "nats", preferred_port=0)
        server.start()
        try:
            return _figures(await _deliver(server.url, folder, over_s=over_s))
        finally:
            server.stop()


async def _deliver(nats_url: str, folder: Path, *, over_s: float) -> Outcome:
    came = folder / "came"
    bus = Bus(nats_url, name="benchmark")
    bus.start()
    await asyncio.wait_for(bus.wait_connected(), 10)
    arguments = ("-m", "benchmarks.harness.receivers", str(HOSTS), str(HUNG), str(came))
    async with _process(*arguments, stdout=PIPE) as receivers:
        assert receivers.stdout is not None
        port = int(await asyncio.wait_for(receivers.stdout.readline(), 20))
        hosts = await _ended_jobs(bus, port)
        role = {
            "DARKROOM_NATS_URL": nats_url,
            "DARKROOM_DATA_DIR": str(folder),
            "DARKROOM_SECRET": "a secret of sixteen",
            "DARKROOM_CALLBACK_ALLOW_NETWORKS": "127.0.0.0/8",
        }
        async with _process("-c", _ROLE, env={**os.environ, **role}) as callbacks:
            due = await _queue(CallbackQueue(bus), hosts, over_s=over_s)
            healthy = {job_id for job_id, host in hosts.items() if host >= HUNG}
            await _until_left(bus, healthy)
            times = psutil.Process(callbacks.pid).cpu_times()
    await bus.close()
    return Outcome(
        due={job_id: due[job_id] for job_id in healthy},
        arrivals=[Arrival.parse(line) for line in came.read_text().splitlines()],
        role_cpu_s=times.user + times.system,
    )


@asynccontextmanager
async def _process(*arguments: str, **options: Any) -> AsyncGenerator[Process]:
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, **options)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


async def _ended_jobs(bus: Bus, port: int) -> dict[str, int]:
    """Add ended jobs to the log, with the hosts in turn. Return the host of each job."""
    writer, room = JobWriter(JetStreamLog(bus)), asyncio.Semaphore(AT_ONCE)

    async def add(host: int) -> str:
        submitted = Submitted(
            flavour=Flavour.DIFFUSION,
            owner="benchmark",
            key_id="key",
            endpoint="default",
            lane=0,
            request={},
            fingerprint="",
            images=1,
            callback_url=_url(host, port),
        )
        async with room:
            job_id = new_id()
            outcome = await writer.submit(job_id, Submit(submitted))
            assert outcome.job is not None
            await writer.execute(Cancel(), outcome.job)
        return job_id

    hosts = [number % HOSTS for number in range(CALLBACKS)]
    ids = await asyncio.gather(*map(add, hosts))
    return dict(zip(ids, hosts, strict=True))


def _url(host: int, port: int) -> str:
    return f"http://{address(host)}:{port}/hook"


async def _queue(queue: CallbackQueue, hosts: dict[str, int], *, over_s: float) -> dict[str, float]:
    """Put the callbacks on the queue over `over_s` seconds. Return the time of each, by job id."""
    due: dict[str, float] = {}
    began, room = time.monotonic(), asyncio.Semaphore(AT_ONCE)

    async def add(number: int, job_id: str) -> None:
        await asyncio.sleep(began + over_s * number / len(hosts) - time.monotonic())
        async with room:
            due[job_id] = time.time()
            await queue.add(job_id)

    await asyncio.gather(*(add(number, job_id) for number, job_id in enumerate(hosts)))
    return due


async def _until_left(bus: Bus, job_ids: set[str]) -> None:
    """Wait until none of these jobs has an entry on the callback queue."""
    queue, give_up_at = CallbackQueue(bus), time.monotonic() + GIVE_UP_S
    while left := job_ids & await queue.job_ids():
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"{len(left)} are not delivered after {GIVE_UP_S:g} s")
        await asyncio.sleep(1)


def _figures(outcome: Outcome) -> list[list[str]]:
    due, arrivals = outcome.due, outcome.arrivals
    first = {each.job_id: each.at for each in reversed(arrivals) if each.job_id in due}
    latencies_s = [at - due[job_id] for job_id, at in first.items()]
    percentiles_s = statistics.quantiles(latencies_s, n=100)
    last = max(first.values())
    return [
        ["delivered to healthy hosts", f"{len(first):,} of {len(due):,}"],
        ["latency of those, median", f"{percentiles_s[49]:.2f} s"],
        ["latency of those, p99", f"{percentiles_s[98]:.2f} s"],
        ["from the first due to the last delivered", f"{last - min(due.values()):.1f} s"],
        ["tries on hung hosts", str(sum(each.host < HUNG for each in arrivals))],
        ["their share once breakers are open", _share(arrivals, until=last)],
        ["CPU of the role, per try", f"{outcome.role_cpu_s / len(arrivals) * 1000:.1f} ms"],
    ]


def _share(arrivals: list[Arrival], *, until: float) -> str:
    failures = BreakerLimits().failures
    opened: dict[int, float] = {}
    for host in range(HUNG):
        times = sorted(each.at for each in arrivals if each.host == host)
        if len(times) >= failures:
            nth = times[failures - 1]
            opened[host] = nth + TIMEOUT_S
    if not opened or min(opened.values()) > until:
        return "-"
    inside = [each for each in arrivals if min(opened.values()) < each.at <= until]
    hung = sum(each.at > opened.get(each.host, until) for each in inside)
    return f"{hung / len(inside):.1%} ({hung} of {len(inside):,})"


if __name__ == "__main__":
    main()
