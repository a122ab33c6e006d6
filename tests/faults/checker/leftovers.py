"""Things that a run should not leave behind: beside the running service, and after its end."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterator, Sequence

from nats.aio.client import Client

from events.bus.streams import CALLBACKS, DELIVERIES, JOBS, QUEUE
from events.ids import LANES
from tests.faults.parts.machine import Machine
from tests.faults.parts.parts import Parts
from tests.faults.parts.processes import TITLES

_MOST_FOLLOWERS = 12
"""The allowed number of unnamed consumers of a stream: those of roles, and of killed processes."""
_MOST_FILES_OPEN = 400


async def beside_the_service(parts: Parts, client: Client) -> list[str]:
    """Check while the service runs and is idle."""
    return [
        *[each async for each in _on_the_bus(client, parts.endpoints)],
        *_in_the_cluster(parts),
        *_files(parts),
    ]


def after_the_service(machine: Machine) -> list[str]:
    """Check after the service has stopped, while the event log still runs."""
    ours = {node.process.pid for node in machine.nats.nodes if node.process}
    found = [
        f"process {process.pid} is left: {' '.join(process.cmdline())[:120]}"
        for process in machine.processes.all()
        if process.pid not in ours
    ]
    found += [
        f"{path.relative_to(machine.temporary)} is left in the temporary folder"
        for path in machine.temporary.glob("*/*")
        if path.name != "ray"  # its logs are kept to investigate failures
    ]
    return found


async def _on_the_bus(client: Client, endpoints: Sequence[str]) -> AsyncGenerator[str]:
    js = client.jetstream(timeout=5)
    lanes = {f"{endpoint}-{lane}" for endpoint in endpoints for lane in range(LANES)}
    known = {QUEUE: lanes, JOBS: {"router"}, CALLBACKS: {"callbacks"}, DELIVERIES: set()}
    for stream, names in known.items():
        unknown = [c.name for c in await js.consumers_info(stream) if c.name not in names]
        if len(unknown) > _MOST_FOLLOWERS:
            yield f"{len(unknown)} consumers of {stream} have no name of ours"
        if stream in {QUEUE, CALLBACKS} and (left := (await js.stream_info(stream)).state.messages):
            yield f"{left} messages are left in {stream}"


def _in_the_cluster(parts: Parts) -> Iterator[str]:
    ray = parts.ray()
    groups = ray.placement_groups()
    for endpoint in parts.endpoints:
        mine = [name for name in groups if name.startswith(f"worker:{endpoint}:")]
        if len(mine) > 1:
            yield f"{endpoint} has the placement groups {mine}"
        groups = [name for name in groups if name not in mine]
    for name in groups:
        yield f"the placement group {name} belongs to no endpoint"
    for actor in ray.actors():
        name = actor["Name"]
        if (
            name.startswith("worker:")
            and ":".join(name.split(":")[:4]) not in ray.placement_groups()
        ):
            yield f"the actor {name} is on no placement group"
    for part in TITLES:
        for pid in parts.processes.titled(part):
            count = _open_files(pid)
            if count > _MOST_FILES_OPEN:
                yield f"the {part} {pid} has {count} files open"


def _files(parts: Parts) -> Iterator[str]:
    for path in parts.temporary.glob("darkroom-run-*"):
        yield f"{path.name} is left in the temporary folder"


def _open_files(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - a path of the kernel
    except OSError:
        return 0
