"""Ray: whether it answers, what it has, and whether that is enough for the workers of endpoints."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from events.errors import DatabaseUnavailable
from events.store.endpoints import Endpoints
from events.store.records import Endpoint
from serve_app.operations.diagnosis.findings import Finding, Level
from serve_app.operations.places import open_database
from settings.stores import StoreSettings

_TIMEOUT_S = 30.0
_PROBE = "serve_app.operations.diagnosis.ray_probe"
_ROOT = Path(__file__).resolve().parents[3]


class RayCheck:
    part = "Ray"

    def __init__(self, address: str | None, stores: StoreSettings) -> None:
        """`address`: of a Ray that should run; None where none needs to."""
        self._address = address
        self._stores = stores

    async def run(self) -> list[Finding]:
        if self._address is None:
            text = "No Ray is known here; `darkroom up` starts one."
            return [Finding(self.part, Level.NOTE, text)]
        has, why = await _asked(self._address, token_path=self._stores.data_dir / "ray.token")
        if has is None:
            text = f"Ray at {self._address} does not answer: {why}"
            remedy = (
                "See the logs of Ray. Run this where a node of that Ray is, with its RAY_ADDRESS."
            )
            return [Finding(self.part, Level.ERROR, text, remedy)]
        found = [Finding(self.part, Level.OK, _shown(has))]
        with suppress(DatabaseUnavailable):  # another check says so
            async with open_database(self._stores) as database:
                found += too_large(await Endpoints(database).all(), has["nodes"])
        return found


def too_large(endpoints: Sequence[Endpoint], nodes: Sequence[Mapping[str, float]]) -> list[Finding]:
    """Endpoints for whose workers no node has enough, were it free. `nodes`: what each one has."""
    return [
        Finding(
            RayCheck.part,
            Level.WARNING,
            f"No node has what a worker of the endpoint {each.id} needs: {_needs(each)}.",
            "Its jobs wait until Ray has such a node. Add one, or change the endpoint.",
        )
        for each in endpoints
        if not any(_fits(each, node) for node in nodes)
    ]


async def _asked(address: str, *, token_path: Path) -> tuple[dict[str, Any] | None, str]:
    """What it has; else None, and why."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", _PROBE, address),
        cwd=_ROOT,
        env=_environment(token_path),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            told, errors = await process.communicate()
    except TimeoutError:
        return None, f"nothing within {_TIMEOUT_S:g} s."
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    try:
        has: dict[str, Any] = json.loads(told)
    except ValueError:
        return None, (errors.decode(errors="replace").strip().splitlines() or ["it ended."])[-1]
    return has, ""


def _environment(token_path: Path) -> dict[str, str]:
    found = dict(os.environ)
    if token_path.exists():
        found.setdefault("RAY_AUTH_TOKEN_PATH", str(token_path.absolute()))
    if "RAY_AUTH_TOKEN_PATH" in found:
        found.setdefault("RAY_AUTH_MODE", "token")
    found["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # else a loopback address is refused
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
