"""Measures the seconds until the service continues after the kill of one of its processes.

For the engine, the time is from its kill during a job to the next step of the job. For the HTTP
replica, it is the longest time between two answers to a caller who repeats a request, each time
over a new connection.

usage: python -m benchmarks.recovery [--rounds 3] [DARKROOM_NAME=value ...]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.harness.report import print_hardware, print_table
from examples.service import Service

BODY = {
    "prompt": "a large red circle",
    "width": 128,
    "height": 128,
    "sampler_name": "Euler",
    "steps": 150,
    "sd_model_checkpoint": "darkroom-tiny.safetensors",
    "batch_size": 4,
}
ASK_PERIOD_S = 0.02
TIMEOUT_S = 120.0
TORCH_BYTES = 450 * 1024**2
QUIET_S = 5.0
"""The pause in seconds after a recovery, before the next kill."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("settings", nargs="*")
    args = parser.parse_args()
    settings = {"DARKROOM_MAX_COST": "2000"} | dict(each.split("=", 1) for each in args.settings)
    standby = settings.get("DARKROOM_TEST_STANDBY_ENGINE") != "false"
    print_hardware()
    with tempfile.TemporaryDirectory(prefix="darkroom-") as name:
        folder = Path(name)
        with Service(folder / "data", settings, log_path=folder / "log") as service:
            rows = [
                _row(
                    "engine", [_engine_back_s(service, standby=standby) for _ in range(args.rounds)]
                ),
                _row("HTTP replica", [_replica_back_s(service) for _ in range(args.rounds)]),
            ]
    print_table("Seconds until the service goes on", ("killed", "median", "longest"), rows)


def _row(part: str, times_s: list[float]) -> tuple[str, str, str]:
    return part, f"{statistics.median(times_s):.2f}", f"{max(times_s):.2f}"


def _engine_back_s(service: Service, *, standby: bool) -> float:
    """Kill the engine during a job. Return the seconds until the next step. With `standby`, wait
    before the kill until the standby is ready.
    """
    with _client(service) as http:
        answer = http.post("/diffusion/v1/generate", json=BODY).raise_for_status()
        job = {"request_id": answer.json()["request_id"]}

        def progress() -> float | None:
            result: dict[str, Any] = http.get("/diffusion/v1/result", params=job).json()
            return result.get("progress") if result["status"] == 0 else 1.0

        _wait(lambda: (progress() or 0) > 0.1)
        _wait(lambda: _have_torch(service) == 1 + standby)
        _kill(service, "ray::EngineProcess", socket="darkroom-engine-")
        began = time.monotonic()
        at_kill = progress()
        _wait(lambda: progress() not in {at_kill, None, 0.0})
        took_s = time.monotonic() - began
        http.delete(f"/v1/jobs/{job['request_id']}")
    time.sleep(QUIET_S)
    return took_s


def _replica_back_s(service: Service) -> float:
    time.sleep(QUIET_S)
    answers: list[float] = [time.monotonic()]
    stop = threading.Event()

    def ask() -> None:
        while not stop.wait(ASK_PERIOD_S):
            with suppress(httpx.TransportError):
                answer = httpx.get(f"{service.url}/health/live", timeout=1, trust_env=False)
                if answer.is_success:
                    answers.append(time.monotonic())

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(1)
    _kill(service, "ray::ServeReplica:darkroom:Api")
    time.sleep(20)
    stop.set()
    asking.join()
    return max(after - before for before, after in itertools.pairwise(answers))


def _kill(service: Service, title: str, *, socket: str = "") -> None:
    """Kill the first process whose command line contains `title` and that has a socket whose name
    contains `socket`.
    """
    for process in psutil.Process(service.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            sockets = [each.laddr for each in process.net_connections("unix")]
            if title in " ".join(process.cmdline()) and any(socket in each for each in sockets):
                process.kill()
                return
    raise AssertionError(f"no process {title}")


def _have_torch(service: Service) -> int:
    """Return the number of engine processes that have loaded torch, as their memory shows."""
    count = 0
    for process in psutil.Process(service.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            is_engine = "ray::EngineProcess" in " ".join(process.cmdline())
            count += is_engine and process.memory_info().rss > TORCH_BYTES
    return count


def _wait(check: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + TIMEOUT_S
    while not check():
        if time.monotonic() > give_up_at:
            raise AssertionError("it did not go on")
        time.sleep(ASK_PERIOD_S)


def _client(service: Service) -> httpx.Client:
    headers = {"Authorization": f"Bearer {service.admin_key}"}
    return httpx.Client(base_url=service.url, headers=headers, timeout=30, trust_env=False)


if __name__ == "__main__":
    main()
