"""Wall time of a small job through the service, against the same graph on the engine alone.

One 64 px image in 20 steps with the tiny checkpoint; then 16 such jobs at once. The two sides take
turns. Through the service: from the submit until the last result has come (`wait`), so with HTTP,
event log, queue, job actor, PNG and storage; it runs `DARKROOM_JOBS_PER_WORKER` jobs at once, and
is measured with 4, as it comes, and with 16, as many as the engine alone is given.

usage: python -m benchmarks.small_job
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from benchmarks._engine import graph
from benchmarks._process import Process
from benchmarks._report import print_hardware, print_table
from examples.service import Service
from serve_app.cli.client import Client

ONE_ROUNDS = 10
MANY_ROUNDS = 4
MANY = 16
WAIT_S = 60.0

seeds = itertools.count(1)


def main() -> None:
    print_hardware()
    for jobs_at_once in (4, MANY):
        print_table(
            f"{jobs_at_once} jobs per worker: seconds, medians of {ONE_ROUNDS} (1 job) and"
            f" {MANY_ROUNDS} ({MANY} at once)",
            ("jobs", "service", "engine alone", "ratio", "added"),
            _compare(jobs_at_once),
        )


def _compare(jobs_at_once: int) -> list[list[str]]:
    settings = {
        "DARKROOM_JOBS_PER_WORKER": str(jobs_at_once),
        "DARKROOM_OWNER_SLOTS_KEPT_FREE": "0",
    }
    with (
        tempfile.TemporaryDirectory(prefix="darkroom-") as name,
        Service(Path(name) / "data", settings, log_path=Path(name) / "log") as service,
        Client(service.url, service.admin_key) as client,
        ThreadPoolExecutor(MANY) as pool,
    ):

        def through_service(jobs: int) -> float:
            began = time.perf_counter()
            list(pool.map(lambda _: _run_job(client), range(jobs)))
            return time.perf_counter() - began

        through_service(1)  # the first waits for the worker
        through_service(MANY)
        with Process("benchmarks._engine", nice=_nice_of_engine(service)) as engine:
            engine.run(MANY)  # loads the checkpoint
            return [
                _row(jobs, _medians((through_service, engine.run), jobs, rounds))
                for jobs, rounds in ((1, ONE_ROUNDS), (MANY, MANY_ROUNDS))
            ]


def _nice_of_engine(service: Service) -> int:
    """Ray's workers are nicer than what starts them; the engine alone must not be favoured."""
    family = psutil.Process(service.pid).children(recursive=True)
    engine = next(each for each in family if "EngineProcess" in " ".join(each.cmdline()))
    return int(engine.nice())


def _run_job(client: Client) -> None:
    job_id = client.submit("workflow", {"prompt": graph(next(seeds))})["request_id"]
    status = client.result(job_id, "workflow", wait_s=WAIT_S)["status"]
    if status != 1:
        raise RuntimeError(f"{job_id} ended as {status}")


def _medians(
    sides: tuple[Callable[[int], float], Callable[[int], float]], jobs: int, rounds: int
) -> tuple[float, float]:
    times = [(sides[0](jobs), sides[1](jobs)) for _ in range(rounds)]
    service, engine = zip(*times, strict=True)
    return statistics.median(service), statistics.median(engine)


def _row(jobs: int, times_s: tuple[float, float]) -> list[str]:
    service, engine = times_s
    return [
        str(jobs),
        f"{service:.3f}",
        f"{engine:.3f}",
        f"{service / engine:.2f}",
        f"{(service - engine) / jobs * 1000:.0f} ms a job",
    ]


if __name__ == "__main__":
    main()
