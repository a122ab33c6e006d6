"""Submissions accepted per second, against a route that does nothing, on the same replica.

Both go through the real ingress. Nothing runs the jobs: their worker asks for a GPU, and this Ray
has none. What follows an acceptance (queue, read model) does run, on the same cores; how long that
goes on after a burst is the last column. Bursts of the two routes take turns, each begins quiet.

usage: python -m benchmarks.accept
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks._http import WrongAnswer, bare_server, rate, request
from benchmarks._report import print_hardware, print_table
from examples.service import Service

CONNECTIONS = (1, 8, 32)
ROUNDS = 5
BURST_S = 1.5
ACCEPTED_IN_BURST = 576
"""All bursts together stay below an endpoint's `max_queued` of 10,000."""
ANY = 1_000_000
QUIET_TIMEOUT_S = 15.0
QUIET_CORES = 0.25
"""What the idle service takes, and some: health checks, leases, pulls."""

BODY = {
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
}


def main() -> None:
    print_hardware()
    with tempfile.TemporaryDirectory(prefix="darkroom-") as name:
        folder = Path(name)
        settings = {
            "DARKROOM_RAY_NUM_GPUS": "0",
            "DARKROOM_WORKER_GPUS": "1",
            "DARKROOM_OWNER_RATE_PER_S": "0",
            "DARKROOM_OWNER_MAX_OPEN_JOBS": "0",
        }
        with Service(folder / "data", settings, log_path=folder / "log") as service:
            rows = asyncio.run(_measure(service))
    print_table(
        f"POST /diffusion/v1/generate (202) against GET /health/live: per second,"
        f" medians of {ROUNDS} bursts",
        ("connections", "accepted", "no-op", "ratio", "client's limit", "goes on for"),
        rows,
    )


async def _measure(service: Service) -> list[list[str]]:
    accept = request("POST", "/diffusion/v1/generate", key=service.admin_key, body=BODY)
    nothing = request("GET", "/health/live")
    process = psutil.Process(service.pid)
    rows = []
    async with bare_server() as bare_port:
        await _warm_up(service.port, accept)
        for connections in CONNECTIONS:
            limit = await _burst(bare_port, nothing, 200, connections)
            accepted, answered, goes_on_s = [], [], []
            for _ in range(ROUNDS):
                await _quiet(process)
                answered.append(await _burst(service.port, nothing, 200, connections))
                await _quiet(process)
                accepted.append(await _burst(service.port, accept, 202, connections))
                goes_on_s.append(await _quiet(process))
            rows.append(_row(connections, accepted, answered, limit=limit, goes_on_s=goes_on_s))
    return rows


async def _warm_up(port: int, accept: bytes) -> None:
    """HAProxy still reloads as the service gets ready, which costs open connections."""
    give_up_at = time.monotonic() + QUIET_TIMEOUT_S
    while True:
        try:
            await _burst(port, accept, 202, CONNECTIONS[-1])
        except WrongAnswer:
            if time.monotonic() > give_up_at:
                raise
        else:
            return


async def _burst(port: int, message: bytes, status: int, connections: int) -> float:
    most = ACCEPTED_IN_BURST if status == 202 else ANY
    return await rate(
        port, message, status=status, connections=connections, time_s=BURST_S, most=most
    )


def _row(
    connections: int,
    accepted: list[float],
    answered: list[float],
    *,
    limit: float,
    goes_on_s: list[float],
) -> list[str]:
    of_accept, of_nothing = statistics.median(accepted), statistics.median(answered)
    return [
        str(connections),
        f"{of_accept:.0f}",
        f"{of_nothing:.0f}",
        f"{of_accept / of_nothing:.2f}",
        f"{limit:.0f}",
        f"{statistics.median(goes_on_s):.1f} s",
    ]


async def _quiet(process: psutil.Process) -> float:
    """Returns once the service's processes have nothing left to do; seconds that took."""
    period_s = 0.25
    began = time.monotonic()
    before = _cpu_s(process)
    while time.monotonic() - began < QUIET_TIMEOUT_S:
        await asyncio.sleep(period_s)
        now = _cpu_s(process)
        if now - before < QUIET_CORES * period_s:
            break
        before = now
    return max(0.0, time.monotonic() - began - period_s)


def _cpu_s(process: psutil.Process) -> float:
    """CPU time of the whole tree so far."""
    total = 0.0
    for each in [process, *process.children(recursive=True)]:
        try:
            times = each.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


if __name__ == "__main__":
    main()
