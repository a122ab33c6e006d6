"""Measures what the protocols of other programs add to a request and to the memory of a process.

The same job is sent through Darkroom's own route and through the route of each protocol, in turns,
over one connection. No worker has room, so no job runs. HTTP, router, projection and dispatcher run
without Ray, each in its own process. The benchmark compares the CPU time of the HTTP process per
request and the time until the answer. Protocols that answer with images wait for one millisecond
here, and answer that the job continues. They are compared with a submission to Darkroom and a
request for its result that also waits for one millisecond. The memory of the HTTP process is
measured before any request, with all protocols and without protocols.

usage: python -m benchmarks.protocols [--rounds 5] [--requests 200] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.graphs import CHECKPOINT, graph
from benchmarks.harness.http import Connections, burst, request
from benchmarks.harness.parts import Parts, running_parts
from benchmarks.harness.report import Cell, Report

SYNC = "always"
WAIT_S = 0.001
QUIET_TIMEOUT_S = 600.0
BURST_TIMEOUT_S = 120.0
MOST_MS = 1.0
"""The largest CPU time in milliseconds that a protocol may add to a request."""
SWITCHES = ("COMFYUI", "COMFY_V2", "WEBUI", "OPENAI")
_MB = 1e6

GRAPH = graph(1)
MEMBERS = {"prompt": "a large red circle", "steps": 20, "width": 64, "height": 64, "seed": 1}


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A request that submits a job, and its expected answer."""

    path: str
    status: int
    body: Any = None
    method: str = "POST"
    is_waiting: bool = False
    """Whether the answer is delayed on purpose. Only the CPU time of such a request is compared."""


WORKFLOW = Call("/workflow/v1/generate", 202, {"prompt": GRAPH})
DIFFUSION = Call("/diffusion/v1/generate", 202, {**MEMBERS, "sd_model_checkpoint": CHECKPOINT})
OVERRIDES = {"override_settings": {"sd_model_checkpoint": CHECKPOINT}}
PROTOCOL_CALLS: tuple[tuple[Call, Call], ...] = (
    (Call("/prompt", 200, {"prompt": GRAPH}), WORKFLOW),
    (Call("/api/v2/jobs", 201, {"workflow": GRAPH}), WORKFLOW),
    (Call("/sdapi/v1/txt2img", 504, {**MEMBERS, **OVERRIDES}, is_waiting=True), DIFFUSION),
    (
        Call(
            "/v1/images/generations",
            504,
            {"prompt": MEMBERS["prompt"], "model": CHECKPOINT, "size": "64x64", "seed": 1},
            is_waiting=True,
        ),
        DIFFUSION,
    ),
)
"""Each protocol's call, with the call of Darkroom's own route with which it is compared."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The mean figures of a request."""

    cpu_ms: float
    answered_ms: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.protocols")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    report = Report("protocols")
    asyncio.run(_run(report, args.rounds, args.requests))
    report.write(args.json)


async def _run(report: Report, rounds: int, requests: int) -> None:
    memory_mb = {}
    for name, is_on in (("none", False), ("all", True)):
        settings = {f"DARKROOM_ADAPTER_{each}": str(is_on) for each in SWITCHES}
        settings["DARKROOM_TEST_ADAPTER_MAX_WAIT_S"] = str(WAIT_S)
        async with running_parts(settings, job_s=None, sync=SYNC) as parts:
            memory_mb[name] = parts.pss_bytes()["api"] / _MB
            if is_on:
                bench = Bench(parts, requests)
                _report_added(report, await bench.rounds(rounds), rounds)
    added_mb = memory_mb["all"] - memory_mb["none"]
    report.table(
        "Memory of the HTTP process before any request, by its protocols: MB",
        {"none": ".1f", "all": ".1f", "added": ".2f"},
        [[memory_mb["none"], memory_mb["all"], added_mb]],
    )


class Bench:
    def __init__(self, parts: Parts, requests: int) -> None:
        self._parts = parts
        self._requests = requests

    async def rounds(self, count: int) -> Mapping[Call, Cost]:
        """Measure the calls in turns. Return the medians of each call."""
        result = await self._result_call()
        calls = (WORKFLOW, DIFFUSION, result, *(call for call, _ in PROTOCOL_CALLS))
        for call in calls:
            await self._cost(call)
        measured = [{call: await self._cost(call) for call in calls} for _ in range(count)]
        medians = {
            call: Cost(
                statistics.median(each[call].cpu_ms for each in measured),
                statistics.median(each[call].answered_ms for each in measured),
            )
            for call in calls
        }
        both = medians[DIFFUSION].cpu_ms + medians[result].cpu_ms
        return {**medians, DIFFUSION: Cost(both, medians[DIFFUSION].answered_ms)}

    async def _cost(self, call: Call) -> Cost:
        await self._parts.settle(timeout_s=QUIET_TIMEOUT_S)
        message = request(call.method, call.path, key=self._parts.key, body=call.body)
        before = self._api_cpu_s()
        done = await burst(
            self._parts.port,
            message,
            status=call.status,
            connections=1,
            time_s=BURST_TIMEOUT_S,
            most=self._requests,
        )
        cpu_s = self._api_cpu_s() - before
        return Cost(1000 * cpu_s / done.answers, 1000 * done.time_s / done.answers)

    def _api_cpu_s(self) -> float:
        return sum(self._parts.families["api"].cpu_s().values())

    async def _result_call(self) -> Call:
        """Submit a job, and return a call for its result."""
        connections = Connections(self._parts.port)
        try:
            message = request("POST", DIFFUSION.path, key=self._parts.key, body=DIFFUSION.body)
            job_id = (await connections.call(message)).json()["request_id"]
        finally:
            connections.close()
        path = f"/diffusion/v1/result?request_id={job_id}&wait={WAIT_S}"
        return Call(path, 200, method="GET", is_waiting=True)


def _report_added(report: Report, costs: Mapping[Call, Cost], rounds: int) -> None:
    rows: list[list[Cell]] = []
    for call, ours in PROTOCOL_CALLS:
        its, our = costs[call], costs[ours]
        answered: list[Cell] = [its.answered_ms, its.answered_ms - our.answered_ms]
        rows.append(
            [
                call.path,
                its.cpu_ms,
                our.cpu_ms,
                its.cpu_ms - our.cpu_ms,
                *([None, None] if call.is_waiting else answered),
            ]
        )
    report.table(
        f"A request through a protocol beside ours: ms, medians of {rounds} rounds; "
        f"{MOST_MS:g} may be added",
        {
            "route": "",
            "CPU": ".2f",
            "CPU of ours": ".2f",
            "added": "+.2f",
            "answered after": ".2f",
            "later than ours": "+.2f",
        },
        rows,
    )


if __name__ == "__main__":
    main()
