"""Checks of Ray and its resources, and of the dispatchers and workers of endpoints."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from events.bus.request_reply import ask_status
from events.errors import DatabaseUnavailable, LogUnavailable
from events.store.endpoints import Endpoints
from events.store.records import Endpoint
from operations.diagnosis.findings import Finding, Level
from operations.stores import open_bus, open_database
from settings.log import LogSettings
from settings.stores import StoreSettings

_RAY_TIMEOUT_S = 30.0
_PROBE = "operations.diagnosis.ray_probe"
_MOST_ENDPOINTS = 20
"""The largest number of endpoints whose status is requested, each for up to a second."""
_ROOT = Path(__file__).resolve().parents[2]


class RayCheck:
    part = "Ray"

    def __init__(self, address: str | None, stores: StoreSettings) -> None:
        """`address` is the address of the Ray that should run, or None if no Ray has to run."""
        self._address = address
        self._stores = stores

    async def run(self) -> list[Finding]:
        if self._address is None:
            text = "Ray does not run here. `darkroom up` starts it."
            return [Finding(self.part, Level.NOTE, text)]
        has, why = await _asked(self._address, token_path=self._stores.data_dir / "ray.token")
        if has is None:
            text = f"Ray at {self._address} does not answer: {why}"
            remedy = (
                "See the logs of Ray. Run this command on a node of that Ray, with the RAY_ADDRESS "
                "of Ray."
            )
            return [Finding(self.part, Level.ERROR, text, remedy)]
        found = [Finding(self.part, Level.OK, _shown(has))]
        with suppress(DatabaseUnavailable):  # Another check reports this error.
            async with open_database(self._stores) as database:
                found += too_large(await Endpoints(database).all(), has["nodes"])
        return found


def too_large(endpoints: Sequence[Endpoint], nodes: Sequence[Mapping[str, float]]) -> list[Finding]:
    """Return a finding for each endpoint whose worker is too large for every node.

    `nodes` are the total resources of each node.
    """
    return [
        Finding(
            RayCheck.part,
            Level.WARNING,
            f"No node has the resources that a worker of the endpoint {each.id} needs: "
            f"{_needs(each)}.",
            "The jobs of this endpoint stay queued until Ray has such a node. Add a node, or "
            "change the endpoint.",
        )
        for each in endpoints
        if not any(_fits(each, node) for node in nodes)
    ]


async def _asked(address: str, *, token_path: Path) -> tuple[dict[str, Any] | None, str]:
    """Return the resources of Ray, or None with the reason."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", _PROBE, address),
        cwd=_ROOT,
        env=_environment(token_path),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_RAY_TIMEOUT_S):
            output, errors = await process.communicate()
    except TimeoutError:
        return None, f"no answer within {_RAY_TIMEOUT_S:g} s."
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    try:
        has: dict[str, Any] = json.loads(output)
    except ValueError:
        return None, (errors.decode(errors="replace").strip().splitlines() or ["it ended."])[-1]
    return has, ""


def _environment(token_path: Path) -> dict[str, str]:
    found = dict(os.environ)
    if token_path.exists():
        found.setdefault("RAY_AUTH_TOKEN_PATH", str(token_path.absolute()))
    if "RAY_AUTH_TOKEN_PATH" in found:
        found.setdefault("RAY_AUTH_MODE", "token")
    # With "1", Ray replaces a loopback address by the address of the machine in the network.
    found["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    return found


def _shown(has: Mapping[str, Any]) -> str:
    nodes, free = has["nodes"], has["free"]

    def part(name: str, resource: str) -> str:
        total = sum(each.get(resource, 0) for each in nodes)
        return f"{free.get(resource, 0):g} of {total:g} {name} free"

    plural = "s" * (len(nodes) != 1)
    return f"{len(nodes)} node{plural}; {part('GPUs', 'GPU')}, {part('CPUs', 'CPU')}."


def _fits(endpoint: Endpoint, node: Mapping[str, float]) -> bool:
    wanted = {"GPU": endpoint.gpus, "CPU": endpoint.cpus, **(endpoint.resources or {})}
    return all(node.get(name, 0) >= count for name, count in wanted.items() if count)


def _needs(endpoint: Endpoint) -> str:
    wanted = {"GPUs": endpoint.gpus, "CPUs": endpoint.cpus, **(endpoint.resources or {})}
    return ", ".join(f"{count:g} {name}" for name, count in wanted.items() if count)


class EndpointCheck:
    part = "endpoints"

    def __init__(self, log: LogSettings, stores: StoreSettings) -> None:
        self._log = log
        self._stores = stores

    async def run(self) -> list[Finding]:
        """Return no findings if NATS or the database does not answer. Other checks report this."""
        with suppress(DatabaseUnavailable, LogUnavailable):
            async with open_database(self._stores) as database:
                ids = [each.id for each in await Endpoints(database).all()]
            async with open_bus(self._log, self._stores) as bus:
                statuses = {id: await ask_status(bus, id) for id in sorted(ids)[:_MOST_ENDPOINTS]}
            return self._found(statuses)
        return []

    def _found(self, statuses: Mapping[str, Mapping[str, Any] | None]) -> list[Finding]:
        found = []
        if silent := [id for id, status in statuses.items() if status is None]:
            text = f"No dispatcher answers for {', '.join(silent)}, so no job starts there."
            remedy = (
                "A dispatcher that has just ended is replaced within seconds, so check again. If "
                "the problem remains, the role of the dispatcher does not run or does not reach "
                "NATS: see the log."
            )
            found.append(Finding(self.part, Level.ERROR, text, remedy))
        for id, status in statuses.items():
            workers = (status or {}).get("workers", ())
            found += [self._trouble(id, each) for each in workers if each.get("trouble")]
        if not found:
            found.append(
                Finding(
                    self.part, Level.OK, f"Each endpoint has a dispatcher: {_counts(statuses)}."
                )
            )
        return found

    def _trouble(self, id: str, worker: Mapping[str, Any]) -> Finding:
        state = "lacks something" if worker.get("state") == "ready" else "is not ready"
        text = f"A worker of {id} {state}: {worker['trouble']}"
        remedy = (
            "See the log of the service. `darkroom endpoints show` shows the same message to "
            "callers."
        )
        return Finding(self.part, Level.WARNING, text, remedy)


def _counts(statuses: Mapping[str, Mapping[str, Any] | None]) -> str:
    def ready(workers: Sequence[Mapping[str, Any]]) -> int:
        return sum(each.get("state") == "ready" for each in workers)

    return ", ".join(
        f"{id} with {ready((status or {}).get('workers', ()))} ready workers"
        for id, status in statuses.items()
    )
