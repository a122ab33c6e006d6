"""What faults reach, checks look at and callers need, whatever the service runs on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from storage.images import ImageStore
from tests.faults.parts.cable import Cable
from tests.faults.parts.nats_servers import NatsServers
from tests.faults.parts.processes import Processes, RayState
from tests.support.database import Postgres


class Parts(Protocol):
    @property
    def processes(self) -> Processes: ...

    @property
    def nats(self) -> NatsServers: ...

    @property
    def cable(self) -> Cable | None:
        """None: every process knows the log servers themselves."""

    @property
    def postgres(self) -> Postgres | None:
        """None: the database is a file."""

    @property
    def database_url(self) -> str: ...

    @property
    def images(self) -> ImageStore: ...

    @property
    def control(self) -> Path:
        """Faults inside of the service's processes; see `inside/sitecustomize.py`."""

    @property
    def temporary(self) -> Path:
        """What the service takes for the temporary folder."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Of commands beside the service, with its settings."""

    @property
    def endpoints(self) -> tuple[str, ...]: ...

    def ray(self) -> RayState: ...

    def darkroom(self, *arguments: str) -> str:
        """What the command prints. Raises if it fails."""

    async def lose_node(self, lasts_s: float) -> bool:
        """Kill a Ray node whole, and have another one in its place after so long; whether there
        was one.
        """
