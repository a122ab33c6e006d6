"""One part of the service in a process of its own, without Ray; its settings are its environment.

usage: python -m benchmarks.harness.part api PORT | router | results | callbacks | dispatcher
"""

from __future__ import annotations

import asyncio
import os
import sys

import uvicorn

from actors.assembly import connect
from actors.roles import run_callbacks, run_dispatcher, run_results, run_router
from actors.worker.config import WorkerConfig
from benchmarks.harness.simulated_workers import SimulatedCluster
from events.log import JobWriter
from serve_app.app import build_asgi
from settings.settings import Settings

ROLES = {"router": run_router, "results": run_results, "callbacks": run_callbacks}
JOB_S = "BENCHMARK_JOB_S"
"""How long a simulated job takes; without it, no worker gets a place."""
JOB_WRITES = "BENCHMARK_JOB_WRITES"
"""Empty where a simulated job writes no event, and only acknowledges its entry."""


async def _dispatch(settings: Settings) -> None:
    """With workers that are simulated."""
    messaging = connect(settings.log, "workers", lease_s=settings.workers.lease_s)
    await messaging.connected()
    job_s = os.environ.get(JOB_S)

    def open_cluster(config: WorkerConfig) -> SimulatedCluster:
        return SimulatedCluster(
            JobWriter(messaging.log),
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
