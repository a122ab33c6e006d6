"""Load on a service: jobs that are sent at their times, whatever became of those before them."""

from __future__ import annotations

import asyncio
from asyncio import IncompleteReadError
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness.http import Connections, request
from benchmarks.harness.latencies import Load, Sample, parse_server_timing

WAIT_S = 30
"""How long one answer is held; the service allows 60."""


@dataclass(frozen=True, slots=True)
class End:
    """How a job ended, as its caller was told."""

    is_good: bool = True
    stage_ms: Mapping[str, float] = field(default_factory=dict)
    rows_per_call: float | None = None


async def offer(
    arrivals: Sequence[float], run: Callable[[int], Awaitable[End]], *, time_s: float | None = None
) -> Load:
    """Run each job from its time on, in a task of its own, and wait for all of them.

    `run` gets the number of the job. `time_s`: for how long jobs arrive; if it is not given, the
    time until the last end counts, as for jobs that all come at once.
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
    """A caller of the service, who submits graphs and waits for their results."""

    def __init__(self, port: int, key: str) -> None:
        self._connections = Connections(port)
        self._key = key

    async def run(self, graph: Mapping[str, Any]) -> End:
        """Submit a job and wait for its end. One that is refused has no good end."""
        try:
            answer = await self._call("POST", "/workflow/v1/generate", {"prompt": graph})
            if answer.status != 202:
                return End(is_good=False)
            return await self.end(str(answer.json()["request_id"]))
        except (OSError, IncompleteReadError):
            return End(is_good=False)

    async def submit(self, graph: Mapping[str, Any]) -> str:
        """The id of the job. Raises AssertionError where it is refused."""
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
