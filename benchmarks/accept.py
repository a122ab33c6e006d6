"""Measures accepted submissions per second against a route that does nothing, on the same replica.

Both routes go through the real ingress. No job runs, because the worker needs a GPU and this Ray
has no GPU. Queue and read model work on the same cores; the table shows how long this work
continues after a burst. Bursts of the routes alternate, and each burst starts on an idle service.
Reads of the results of open and ended jobs are measured in the same way. If COMFYUI_URL is set,
bursts of `POST /prompt` to that ComfyUI, which keeps its queue in memory, alternate with bursts to
the service.

usage: python -m benchmarks.accept [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.harness.graphs import graph
from benchmarks.harness.http import Burst, Connections, WrongAnswer, bare_server, burst, request
from benchmarks.harness.installation import Installation, installation
from benchmarks.harness.machine import used
from benchmarks.harness.report import Cell, Report
from benchmarks.peers import comfyui

CONNECTIONS = (1, 8, 32)
PEER_CONNECTIONS = 8
BURST_S = 1.5
ACCEPTED_IN_BURST = 300
"""The largest number of jobs in a burst. All bursts together submit fewer jobs than an endpoint's
`max_queued` of 10,000.
"""
ANY = 1_000_000
WARM_UP_TIMEOUT_S = 15.0
REST_S = 5.0

DIFFUSION, WORKFLOW = "/diffusion/v1/generate", "/workflow/v1/generate"
BODIES = {
    DIFFUSION: {
        "prompt": "a large red circle on a blue background",
        "negative_prompt": "blurry",
        "width": 256,
        "height": 256,
        "sampler_name": "DPM++ 2M",
        "scheduler": "Karras",
        "steps": 20,
        "cfg_scale": 7,
        "batch_size": 1,
        "seed": -1,
    },
    WORKFLOW: {"prompt": graph(1)},
}
NOTHING = request("GET", "/health/live")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accept")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    report = Report("accept")
    with installation({"DARKROOM_RAY_NUM_GPUS": "0", "DARKROOM_WORKER_GPUS": "1"}) as service:
        asyncio.run(Bench(service, report, args.rounds).run())
    report.write(args.json)


@dataclass(frozen=True, slots=True)
class Accepted:
    """One burst of submissions."""

    per_s: float
    goes_on_s: float
    cpu_ms: dict[str, float]
    """The CPU time of one job in milliseconds, by part."""


class Bench:
    def __init__(self, service: Installation, report: Report, rounds: int) -> None:
        self._installed = service
        self._report = report
        self._rounds = rounds
        self._port = service.service.port
        self._idle_cores: dict[str, float] = {}
        self._cpu_ms: list[dict[str, float]] = []
        """The CPU time of an accepted job in milliseconds by part, for each burst."""
        self._accept = {
            path: request("POST", path, key=service.service.admin_key, body=body)
            for path, body in BODIES.items()
        }

    async def run(self) -> None:
        await self._warm_up()
        self._idle_cores = await self._cores_at_rest()
        await self._report_accepted()
        self._report_cpu()
        await self._report_results()
        if comfyui.URL is not None:
            await self._report_comfyui(comfyui.URL)

    async def _warm_up(self) -> None:
        """Wait until HAProxy no longer reloads, because reloads close connections."""
        give_up_at = time.monotonic() + WARM_UP_TIMEOUT_S
        while True:
            try:
                await self._burst(self._accept[DIFFUSION], 202, CONNECTIONS[-1])
            except WrongAnswer:
                if time.monotonic() > give_up_at:
                    raise
            else:
                return

    async def _cores_at_rest(self) -> dict[str, float]:
        self._installed.settle()
        before = self._installed.family.cpu_s()
        await asyncio.sleep(REST_S)
        cpu_s = used(before, self._installed.family.cpu_s())
        return {part: each / REST_S for part, each in cpu_s.items()}

    async def _report_accepted(self) -> None:
        rows: list[list[Cell]] = []
        async with bare_server() as bare_port:
            for connections in CONNECTIONS:
                limit = (await _burst(bare_port, NOTHING, 200, connections)).per_s
                answered, accepted = list[float](), list[Accepted]()
                for _ in range(self._rounds):
                    answered.append((await self._burst(NOTHING, 200, connections)).per_s)
                    accepted.append(await self._accepted(connections))
                self._cpu_ms += [each.cpu_ms for each in accepted]
                ours = statistics.median(each.per_s for each in accepted)
                nothing = statistics.median(answered)
                goes_on_s = statistics.median(each.goes_on_s for each in accepted)
                rows.append([str(connections), ours, nothing, ours / nothing, limit, goes_on_s])
        self._report.table(
            f"POST {DIFFUSION} (202) against GET /health/live: per second, medians of"
            f" {self._rounds} bursts",
            {
                "connections": "",
                "accepted": ".0f",
                "no-op": ".0f",
                "ratio": ".2f",
                "client's limit": ".0f",
                "goes on for s": ".1f",
            },
            rows,
        )

    async def _accepted(self, connections: int) -> Accepted:
        before, began = self._installed.family.cpu_s(), time.monotonic()
        jobs = await self._burst(self._accept[DIFFUSION], 202, connections)
        goes_on_s = self._installed.settle()
        cpu_s = used(before, self._installed.family.cpu_s())
        took_s = time.monotonic() - began
        cpu_ms = {
            part: 1000 * (each - took_s * self._idle_cores.get(part, 0.0)) / jobs.answers
            for part, each in cpu_s.items()
        }
        return Accepted(jobs.per_s, goes_on_s, cpu_ms)

    def _report_cpu(self) -> None:
        parts = sorted({part for each in self._cpu_ms for part in each})
        medians = {
            part: statistics.median(each.get(part, 0.0) for each in self._cpu_ms) for part in parts
        }
        self._report.table(
            "CPU of an accepted job until it is quiet, less what there is at rest: ms",
            {**dict.fromkeys(medians, ".2f"), "all": ".2f"},
            [[*medians.values(), sum(medians.values())]],
        )

    async def _report_results(self) -> None:
        """Measure reads of the results of an open and of a cancelled job."""
        open_id, ended_id = await self._submit(), await self._submit()
        await self._call("POST", f"/v1/jobs/{ended_id}/cancel")
        self._installed.settle()
        rows: list[list[Cell]] = []
        for name, job_id in (("open", open_id), ("ended", ended_id)):
            path = f"/diffusion/v1/result?request_id={job_id}"
            message = request("GET", path, key=self._installed.service.admin_key)
            reads, answered = await self._in_turns(message, NOTHING)
            rows.append([name, reads, answered, reads / answered])
        self._report.table(
            f"GET result against GET /health/live: per second, {PEER_CONNECTIONS} connections",
            {"job": "", "results": ".0f", "no-op": ".0f", "ratio": ".2f"},
            rows,
        )

    async def _report_comfyui(self, url: str) -> None:
        port = urlsplit(url).port or 80
        prompt = request("POST", "/prompt", body={"prompt": graph(1)})
        rows: list[list[Cell]] = []
        for name, message in self._accept.items():
            ours, theirs = list[float](), list[float]()
            for _ in range(self._rounds):
                ours.append((await self._burst(message, 202, PEER_CONNECTIONS)).per_s)
                self._installed.settle()
                theirs.append((await _burst(port, prompt, 200, PEER_CONNECTIONS)).per_s)
                comfyui.forget_queue(url)
            accepted, queued = statistics.median(ours), statistics.median(theirs)
            rows.append([name, accepted, queued, accepted / queued])
        self._report.table(
            f"POST beside ComfyUI's /prompt: per second, {PEER_CONNECTIONS} connections",
            {"route": "", "accepted": ".0f", "ComfyUI": ".0f", "ratio": ".2f"},
            rows,
        )

    async def _in_turns(self, *messages: bytes) -> Sequence[float]:
        """Send bursts of the messages in turns. Return the median rate of each message, per
        second.
        """
        rounds = [
            [(await self._burst(each, 200, PEER_CONNECTIONS)).per_s for each in messages]
            for _ in range(self._rounds)
        ]
        return [statistics.median(each) for each in zip(*rounds, strict=True)]

    async def _submit(self) -> str:
        answer = await self._call("POST", DIFFUSION)
        return str(answer["request_id"])

    async def _call(self, method: str, path: str) -> dict[str, object]:
        connections, key = Connections(self._port), self._installed.service.admin_key
        try:
            body = BODIES.get(path)
            answer = await connections.call(request(method, path, key=key, body=body))
        finally:
            connections.close()
        return dict(answer.json() if answer.body else {})

    async def _burst(self, message: bytes, status: int, connections: int) -> Burst:
        return await _burst(self._port, message, status, connections)


async def _burst(port: int, message: bytes, status: int, connections: int) -> Burst:
    most = ACCEPTED_IN_BURST if status == 202 else ANY
    return await burst(
        port, message, status=status, connections=connections, time_s=BURST_S, most=most
    )


if __name__ == "__main__":
    main()
