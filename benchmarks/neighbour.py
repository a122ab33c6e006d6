"""Measures how much the requests of one owner delay a small request of another owner.

A neighbour reads the result of an ended job again and again, first alone, and then beside 24
connections of another owner that send the same request again and again. HTTP, router, projection
and dispatcher run without Ray, each in its own process, and one HTTP process answers everybody. The
other owner has 100 ended jobs with requests of 20 kB each.

usage: python -m benchmarks.neighbour [--seconds 10] [--only NAME,...] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.harness.graphs import graph
from benchmarks.harness.http import Answer, Connections, burst, request
from benchmarks.harness.latencies import percentile
from benchmarks.harness.parts import Parts, running_parts
from benchmarks.harness.report import Cell, Report
from events.log import utc_now
from events.store.keys import ApiKeys
from events.store.records import Scope
from serve_app.access.api_keys import mint

CONNECTIONS = 24
ENDED_JOBS = 100
WORKFLOW_BYTES = 20_000
"""The size of the editor's workflow in the request of each ended job."""
LARGE_BYTES = 500_000
"""The size of the body with the large graph, which is below the limit of 512 KiB."""
LARGE_NODES = 950
SETTINGS = {"DARKROOM_MIN_WORKERS": "1", "DARKROOM_JOBS_PER_WORKER": "4"}
MOST_TIMES = 3.0
"""The largest ratio of the neighbour's p95 beside another owner and alone."""
PAUSE_S = 0.005
"""The neighbour's pause between two requests."""
END_TIMEOUT_S = 60.0
READY_TIMEOUT_S = 300.0


def _large_graph() -> dict[str, Any]:
    """Return a valid body of nearly 512 KiB: a graph of 957 nodes with titles."""
    nodes: dict[str, Any] = graph(1)
    title_chars = LARGE_BYTES // LARGE_NODES - 220
    for number in range(LARGE_NODES):
        nodes[f"t{number}"] = {
            "class_type": "PrimitiveString",
            "inputs": {"value": f"{number}, {'x' * 100}"},
            "_meta": {"title": "x" * title_chars},
        }
    return {"prompt": nodes}


OTHERS: dict[str, tuple[str, str, int, Any]] = {
    "history": ("GET", "/history", 200, None),
    "object_info": ("GET", "/object_info", 200, None),
    "openapi": ("GET", "/openapi.json", 200, None),
    "jobs": ("GET", "/v1/jobs?limit=200&results=true", 200, None),
    "graphs": ("POST", "/workflow/v1/generate", 202, _large_graph()),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.neighbour")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--only", default=",".join(OTHERS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    report = Report("neighbour")
    asyncio.run(_run(report, args.only.split(","), args.seconds))
    report.write(args.json)


async def _run(report: Report, names: list[str], time_s: float) -> None:
    async with running_parts(SETTINGS, job_s=0.0, sync="1s") as parts:
        other = await _other_key(parts)
        neighbour = request("GET", await _ended_job(parts), key=parts.key)
        await _history_of(parts, other)
        await parts.settle(timeout_s=END_TIMEOUT_S)
        await _latencies_ms(parts.port, neighbour, 1.0)
        alone = await _latencies_ms(parts.port, neighbour, time_s)
        rows: list[list[Cell]] = [_row("alone", alone, alone)]
        for name in names:
            beside = await _beside(parts, neighbour, other, name, time_s=time_s)
            rows.append(_row(name, beside, alone))
            await parts.settle(timeout_s=10 * END_TIMEOUT_S)
    report.table(
        f"A neighbour's small request beside {CONNECTIONS} requests of another owner: ms; "
        f"{MOST_TIMES:g} times are allowed",
        {"beside": "", "p50": ".1f", "p95": ".1f", "most": ".0f", "times p95 alone": ".1f"},
        rows,
    )


def _row(name: str, latencies_ms: list[float], alone_ms: list[float]) -> list[Cell]:
    p95_ms = percentile(latencies_ms, 95)
    ratio = p95_ms / percentile(alone_ms, 95)
    return [name, percentile(latencies_ms, 50), p95_ms, max(latencies_ms), ratio]


async def _beside(
    parts: Parts, neighbour: bytes, other: str, name: str, *, time_s: float
) -> list[float]:
    """Measure the neighbour while another process sends the requests of the other owner."""
    spawn = get_context("spawn")
    begun = spawn.Event()
    process = spawn.Process(
        target=_attack,
        args=(parts.port, other, name),
        kwargs={"time_s": time_s + 2, "begun": begun},
    )
    process.start()
    try:
        assert await asyncio.to_thread(begun.wait, READY_TIMEOUT_S)
        await asyncio.sleep(1)
        return await _latencies_ms(parts.port, neighbour, time_s)
    finally:
        await asyncio.to_thread(process.join)
        assert process.exitcode == 0


def _attack(port: int, key: str, name: str, *, time_s: float, begun: Any) -> None:
    method, path, status, body = OTHERS[name]
    message = request(method, path, key=key, body=body)
    message = message.replace(b"\r\n", b"\r\nAccept-Encoding: gzip\r\n", 1)
    begun.set()
    asyncio.run(
        burst(port, message, status=status, connections=CONNECTIONS, time_s=time_s, most=1_000_000)
    )


async def _latencies_ms(port: int, message: bytes, time_s: float) -> list[float]:
    connections, latencies_ms = Connections(port), []
    give_up_at = time.perf_counter() + time_s
    while (began := time.perf_counter()) < give_up_at:
        assert (await connections.call(message)).status == 200
        latencies_ms.append(1000 * (time.perf_counter() - began))
        await asyncio.sleep(PAUSE_S)
    connections.close()
    return latencies_ms


async def _other_key(parts: Parts) -> str:
    text, key = mint("other", "benchmark", Scope, created_at=utc_now())
    await ApiKeys(parts.database).add(key)
    return text


async def _history_of(parts: Parts, key: str) -> None:
    editor = {"nodes": ["x" * 100] * (WORKFLOW_BYTES // 104)}
    extra = {"extra_pnginfo": {"workflow": editor}}
    for seed in range(ENDED_JOBS):
        body = {"prompt": graph(seed), "extra_data": extra}
        message = request("POST", "/workflow/v1/generate", key=key, body=body)
        await _end_of(parts, await _call(parts, message), key)


async def _ended_job(parts: Parts) -> str:
    message = request("POST", "/workflow/v1/generate", key=parts.key, body={"prompt": graph(1)})
    return await _end_of(parts, await _call(parts, message), parts.key)


async def _end_of(parts: Parts, accepted: Answer, key: str) -> str:
    """Wait for the end of the job. Return the path of its result."""
    assert accepted.status == 202, accepted.body
    path = f"/workflow/v1/result?request_id={accepted.json()['request_id']}"
    answer = await _call(parts, request("GET", f"{path}&wait={END_TIMEOUT_S:g}", key=key))
    assert answer.json()["status"] == 1, answer.body
    return path


async def _call(parts: Parts, message: bytes) -> Answer:
    connections = Connections(parts.port)
    try:
        return await connections.call(message)
    finally:
        connections.close()


if __name__ == "__main__":
    main()
