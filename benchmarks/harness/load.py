"""Load on a service: each job is sent at its time, whether earlier jobs have ended or not."""

from __future__ import annotations

import asyncio
from asyncio import IncompleteReadError
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness.http import Connections, request
from benchmarks.harness.latencies import Load, Sample, parse_server_timing

WAIT_S = 30
"""The largest time in seconds for which the service delays one answer. The service allows up to
60.
"""


@dataclass(frozen=True, slots=True)
class End:
    """The end of a job, as its caller measures it."""

    is_good: bool = True
    stage_ms: Mapping[str, float] = field(default_factory=dict)
    rows_per_call: float | None = None


async def offer(
    arrivals: Sequence[float], run: Callable[[int], Awaitable[End]], *, time_s: float | None = None
) -> Load:
    """Run each job in its own task, which starts at the time of the job. Wait for all jobs.

    `run` receives the number of the job. `time_s` is the duration of the load in seconds. Without
    `time_s`, the duration ends with the end of the last job, which suits jobs that all arrive at
    once.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def one(number: int, intended_s: float) -> Sample:
        sent_s = loop.time() - began
        end = await run(number)
        return Sample(
            intended_s,
            sent_s,
            loop.time() - began,
            is_good=end.is_good,
            stage_ms=end.stage_ms,
            rows_per_call=end.rows_per_call,
        )

    tasks = []
    for number, intended_s in enumerate(arrivals):
        await asyncio.sleep(began + intended_s - loop.time())
        tasks.append(asyncio.create_task(one(number, intended_s)))
    samples = await asyncio.gather(*tasks)
    return Load(samples, loop.time() - began if time_s is None else time_s)


class Caller:
    """A caller of the service. It submits graphs and waits for their results."""

    def __init__(self, port: int, key: str) -> None:
        self._connections = Connections(port)
        self._key = key

    async def run(self, graph: Mapping[str, Any]) -> End:
        """Submit a job and wait for its end. A refused job counts as failed."""
        try:
            answer = await self._call("POST", "/workflow/v1/generate", {"prompt": graph})
            if answer.status != 202:
                return End(is_good=False)
            return await self.end(str(answer.json()["request_id"]))
        except (OSError, IncompleteReadError):
            return End(is_good=False)

    async def submit(self, graph: Mapping[str, Any]) -> str:
        """Submit a job and return its id. Raises AssertionError if the job is refused."""
        answer = await self._call("POST", "/workflow/v1/generate", {"prompt": graph})
        assert answer.status == 202, answer
        return str(answer.json()["request_id"])

    async def end(self, job_id: str) -> End:
        """Wait for the end of a job."""
        path = f"/workflow/v1/result?request_id={job_id}&wait={WAIT_S}"
        while True:
            answer = await self._call("GET", path)
            if answer.status != 200:
                return End(is_good=False)
            if status := answer.json()["status"]:
                stage_ms, rows = parse_server_timing(answer.headers.get("server-timing", ""))
                return End(status == 1, stage_ms, rows)

    async def _call(self, method: str, path: str, body: Any = None) -> Any:
        return await self._connections.call(request(method, path, key=self._key, body=body))

    def close(self) -> None:
        self._connections.close()
