"""Measures how long `darkroom up` takes until it is ready, until the first picture, and to stop.

The service runs on an empty data folder, then on the same folder again. The first picture is a
small job that is submitted as soon as the service is ready. The job waits for the worker, which
imports torch and loads the checkpoint.

usage: python -m benchmarks.start
"""

from __future__ import annotations

import signal
import tempfile
import time
from pathlib import Path

import psutil
from darkroom_client import Darkroom

from benchmarks.harness.graphs import graph
from benchmarks.harness.report import print_hardware, print_table
from examples.service import Service

STOP_TIMEOUT_S = 60.0


def main() -> None:
    print_hardware()
    with tempfile.TemporaryDirectory(prefix="darkroom-") as name:
        service = Service(Path(name) / "data", {}, log_path=Path(name) / "log")
        try:
            rows = [[folder, *_life(service, seed)] for seed, folder in ((1, "fresh"), (2, "used"))]
        finally:
            service.close()
    print_table(
        "Seconds after `darkroom up`, and after Ctrl-C",
        ("data folder", "ready", "first picture", "Ctrl-C to all processes gone"),
        rows,
    )


def _life(service: Service, seed: int) -> list[str]:
    began = time.monotonic()
    service.start()
    ready_s = time.monotonic() - began
    with Darkroom(service.url, service.admin_key) as darkroom:
        darkroom.wait(darkroom.workflow(graph(seed)))
    first_s = time.monotonic() - began
    family = [psutil.Process(service.pid), *psutil.Process(service.pid).children(recursive=True)]
    began = time.monotonic()
    service.stop(signal.SIGINT)
    _, alive = psutil.wait_procs(family, timeout=STOP_TIMEOUT_S)
    if alive:
        raise RuntimeError(f"still there: {alive}")
    return [f"{each:.1f}" for each in (ready_s, first_s, time.monotonic() - began)]


if __name__ == "__main__":
    main()
