"""The interface of an installation for faults, checks and callers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from storage.images import ImageStore
from tests.faults.parts.nats_servers import NatsServers
from tests.faults.parts.processes import Processes, RayState
from tests.support.database import Postgres
from tests.support.link import Link


class Parts(Protocol):
    @property
    def processes(self) -> Processes: ...

    @property
    def nats(self) -> NatsServers: ...

    @property
    def cable(self) -> Link | None:
        """The cable; None if every process connects to the NATS servers directly."""

    @property
    def postgres(self) -> Postgres | None:
        """The Postgres; None if the database is a file."""

    @property
    def database_url(self) -> str: ...

    @property
    def images(self) -> ImageStore: ...

    @property
    def control(self) -> Path:
        """The folder that controls faults inside the service's processes; see
        `inside/sitecustomize.py`.
        """

    @property
    def temporary(self) -> Path:
        """The service's temporary folder."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of commands beside the service, with its settings."""

    @property
    def endpoints(self) -> tuple[str, ...]: ...

    def ray(self) -> RayState: ...

    def darkroom(self, *arguments: str) -> str:
        """Run the command and return its output. Raises if it fails."""

    async def lose_node(self, lasts_s: float) -> bool:
        """Kill a Ray node and replace it after this time; return whether there was one."""
