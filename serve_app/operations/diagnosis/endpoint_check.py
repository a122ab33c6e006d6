"""Endpoints: whether somebody dispatches each, and what keeps its workers from being ready."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from events.bus.dispatching.endpoint_status import ask_status
from events.errors import DatabaseUnavailable, LogUnavailable
from events.store.endpoints import Endpoints
from serve_app.operations.diagnosis.findings import Finding, Level
from serve_app.operations.places import open_bus, open_database
from settings.log import LogSettings
from settings.stores import StoreSettings

_MOST_TOLD = 20
"""Endpoints that are asked for; each takes up to a second where nobody answers."""


class EndpointCheck:
    part = "endpoints"

    def __init__(self, log: LogSettings, stores: StoreSettings) -> None:
        self._log = log
        self._stores = stores

    async def run(self) -> list[Finding]:
        """Nothing where log or database do not answer: their own checks say so."""
        with suppress(DatabaseUnavailable, LogUnavailable):
            async with open_database(self._stores) as database:
                ids = [each.id for each in await Endpoints(database).all()]
            async with open_bus(self._log, self._stores) as bus:
                told = {id: await ask_status(bus, id) for id in sorted(ids)[:_MOST_TOLD]}
            return self._found(told)
        return []

    def _found(self, told: Mapping[str, Mapping[str, Any] | None]) -> list[Finding]:
        found = []
        if silent := [id for id, status in told.items() if status is None]:
            text = f"No dispatcher says anything of {', '.join(silent)}: no job starts there."
            remedy = (
                "One that has just ended is replaced within seconds: look again. Else its role "
                "does not run, or does not reach NATS: see the log of the service."
            )
            found.append(Finding(self.part, Level.ERROR, text, remedy))
        for id, status in told.items():
            workers = (status or {}).get("workers", ())
            found += [self._trouble(id, each) for each in workers if each.get("trouble")]
        if not found:
            found.append(Finding(self.part, Level.OK, f"Each is dispatched: {_counts(told)}."))
        return found

    def _trouble(self, id: str, worker: Mapping[str, Any]) -> Finding:
        text = f"A worker of {id} is not ready: {worker['trouble']}"
        remedy = "The log of the service says more. `darkroom endpoints show` has it for callers."
        return Finding(self.part, Level.WARNING, text, remedy)


def _counts(told: Mapping[str, Mapping[str, Any] | None]) -> str:
    def ready(workers: Sequence[Mapping[str, Any]]) -> int:
        return sum(each.get("state") == "ready" for each in workers)

    return ", ".join(
        f"{id} with {ready((status or {}).get('workers', ()))} ready workers"
        for id, status in told.items()
    )
