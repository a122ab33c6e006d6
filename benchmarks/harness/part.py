"""Runs one part of the service in its own process, without Ray, with settings from the environment.

usage: python -m benchmarks.harness.part api PORT | router | projection | callbacks | dispatcher
"""

from __future__ import annotations

import asyncio
import os
import sys

import uvicorn

from actors.connections import connect
from actors.roles import callbacks, projection, router
from actors.roles.dispatcher import run_dispatcher
from actors.worker.config import WorkerConfig
from benchmarks.harness.simulated_workers import SimulatedCluster
from events.log import JobWriter
from serve_app.assembly import build_asgi
from settings.settings import Settings

ROLES = {"router": router.run, "projection": projection.run, "callbacks": callbacks.run}
JOB_S = "BENCHMARK_JOB_S"
"""The environment variable with the duration of a simulated job in seconds. Without it no worker
has room.
"""
JOB_WRITES = "BENCHMARK_JOB_WRITES"
"""The environment variable that is empty if a simulated job writes no events and only acknowledges
its entry.
"""


async def _dispatch(settings: Settings) -> None:
    """Run the dispatcher with simulated workers."""
    connections = connect(settings.log, "workers")
    await connections.bus.wait_connected()
    job_s = os.environ.get(JOB_S)

    def open_cluster(config: WorkerConfig) -> SimulatedCluster:
        return SimulatedCluster(
            JobWriter(connections.log),
            job_s=float(job_s or 0),
            jobs_per_worker=config.endpoint.jobs_per_worker,
            has_room=job_s is not None,
            writes=bool(os.environ.get(JOB_WRITES, "yes")),
        )

    await run_dispatcher(settings, open_cluster=open_cluster)


def main() -> None:
    name, settings = sys.argv[1], Settings.load()
    if name == "api":
        port, api = int(sys.argv[2]), build_asgi(settings)
        uvicorn.run(api, host="127.0.0.1", port=port, log_level="warning", access_log=False)
    elif name == "dispatcher":
        asyncio.run(_dispatch(settings))
    else:
        asyncio.run(ROLES[name](settings))


if __name__ == "__main__":
    main()
