"""The parts that every scenario uses: the service, its caller, and the peers."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import psutil

from benchmarks.harness.graphs import CHECKPOINT, Seeds
from benchmarks.harness.installation import Installation
from benchmarks.harness.latencies import Load
from benchmarks.harness.load import Caller, End, offer
from benchmarks.harness.machine import Family, used
from benchmarks.harness.process import Process
from benchmarks.harness.report import Report
from benchmarks.peers import comfyui

FIRST_JOB_TIMEOUT_S = 180.0
_MOST_WARM_UPS = 10


@dataclass(frozen=True, slots=True)
class Size:
    """The amounts of work. With the defaults a run takes some minutes on two cores."""

    jobs: int = 16
    """The number of jobs that are sent at once to saturate the service."""
    rounds: int = 4
    alone: int = 12
    """The number of jobs that run alone, one after the other."""
    load_s: float = 15.0
    """The duration of each load in seconds."""
    idle_s: float = 20.0
    first_steps: int = 40
    copies: int = 3
    """The number of copies of the checkpoint, for jobs whose model has not been read before."""


SMOKE = Size(jobs=2, rounds=1, alone=1, load_s=2.0, idle_s=1.0, first_steps=2, copies=1)
"""A small run, which shows whether everything works. Its figures are useless."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A load, and the CPU time of the service during the load, by part."""

    load: Load
    cpu_s: dict[str, float]

    def cpu_ms_per_job(self) -> float:
        return 1000 * sum(self.cpu_s.values()) / max(1, len(self.load.samples))


class Bench:
    def __init__(
        self, installation: Installation, report: Report, size: Size, *, device: str = "cpu"
    ) -> None:
        """`device` is the device of the peers. The service uses a GPU if there is one."""
        self.installation = installation
        self.report = report
        self.size = size
        self.seeds = Seeds()
        self.caller: Caller = installation.caller()
        self._device = device
        self._rate_per_s: float | None = None
        self._alone_s: float | None = None

    @property
    def family(self) -> Family:
        return self.installation.family

    async def first_job(self) -> None:
        """Run jobs until one succeeds. The first jobs may fail, because HAProxy closes connections
        while it reloads. Raises TimeoutError.
        """
        async with asyncio.timeout(FIRST_JOB_TIMEOUT_S):
            while (await self.at_once("alike", 1)).load.failed:
                pass

    async def warm_up(self, kind: str) -> None:
        """Run jobs until the number of job actors does not change any more. In this time the engine
        also measures the memory of a row.
        """
        actors = 0
        for _ in range(_MOST_WARM_UPS):
            await self.at_once(kind, self.size.jobs)
            before, actors = actors, self.family.processes().get("job actors", 0)
            if actors == before:
                break

    async def at_once(self, kind: str, jobs: int) -> Measured:
        return await self.offer(kind, [0.0] * jobs)

    async def offer(
        self, kind: str, arrivals: Sequence[float], *, time_s: float | None = None
    ) -> Measured:
        """See `harness.load.offer`."""
        graphs = self.seeds.graphs(kind, len(arrivals))

        async def run(number: int) -> End:
            return await self.caller.run(graphs[number])

        before = self.family.cpu_s()
        load = await offer(arrivals, run, time_s=time_s)
        return Measured(load, used(before, self.family.cpu_s()))

    async def alone_s(self) -> float:
        """The median time of one job alone on the service. Latency bounds are multiples of this
        time.
        """
        if self._alone_s is None:
            runs = [await self.at_once("alike", 1) for _ in range(self.size.alone)]
            self._alone_s = statistics.median(each.load.time_s for each in runs)
        return self._alone_s

    async def rate_per_s(self) -> float:
        """The capacity of the service: the jobs per second when many jobs are sent at once."""
        if self._rate_per_s is None:
            await self.warm_up("alike")
            runs = [await self.at_once("alike", self.size.jobs) for _ in range(self.size.rounds)]
            self._rate_per_s = statistics.median(self.size.jobs / run.load.time_s for run in runs)
        return self._rate_per_s

    def engine_peer(self, stack: ExitStack) -> Process:
        """Start an engine without a service, with the same priority as the service's engine."""
        module, models = "benchmarks.peers.engine", str(self.installation.models)
        peer = Process(module, models, self._device, nice=self._nice_of_engine())
        return stack.enter_context(peer)

    def diffusers_peer(self, stack: ExitStack) -> Process:
        checkpoint = str(self.installation.models / "checkpoints" / CHECKPOINT)
        module = "benchmarks.peers.diffusers"
        peer = Process(module, checkpoint, self._device, nice=self._nice_of_engine())
        return stack.enter_context(peer)

    def comfyui_s(self, kind: str, jobs: int) -> float | None:
        """Return the time in seconds that ComfyUI needs for these jobs, or None without a
        ComfyUI.
        """
        if comfyui.URL is None:
            return None
        return comfyui.run_all(comfyui.URL, self.seeds.graphs(kind, jobs))

    def _nice_of_engine(self) -> int:
        family = psutil.Process(self.installation.service.pid).children(recursive=True)
        engine = next(each for each in family if "EngineProcess" in " ".join(each.cmdline()))
        return int(engine.nice())


def median(values: Sequence[float | None]) -> float | None:
    """Return the median of the values that are not None. None if there are no such values."""
    found = [each for each in values if each is not None]
    return statistics.median(found) if found else None


def ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None
