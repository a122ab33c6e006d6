"""An installation, as faults, checks and callers use it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from storage.images import ImageStore
from tests.faults.parts.nats_servers import NatsServers
from tests.faults.parts.processes import Processes, RayState
from tests.support.database import Postgres
from tests.support.link import Link


@dataclass(kw_only=True)
class Parts(ABC):
    folder: Path
    """The folder for all files of the run; its path is short, as paths of sockets must be."""
    processes: Processes
    nats: NatsServers
    cable: Link | None = None
    """The cable; None if every process connects to the NATS servers directly."""
    postgres: Postgres | None = None
    """The Postgres; None if the database is a file."""
    endpoints: tuple[str, ...] = ("default",)

    def __post_init__(self) -> None:
        self.control = self.folder / "control"
        """Controls faults inside the service's processes; see `inside/sitecustomize.py`."""
        self.temporary = self.folder / "t"
        """The service's temporary folder."""
        for folder in (self.control, self.temporary):
            folder.mkdir()

    @property
    @abstractmethod
    def environment(self) -> Mapping[str, str]:
        """The environment of commands beside the service, with its settings."""

    @property
    @abstractmethod
    def database_url(self) -> str: ...

    @property
    @abstractmethod
    def images(self) -> ImageStore: ...

    @abstractmethod
    def ray(self) -> RayState: ...

    @abstractmethod
    def darkroom(self, *arguments: str) -> str:
        """Run the command and return its output. Raises if it fails."""

    async def lose_node(self, lasts_s: float) -> bool:
        """Kill a Ray node and replace it after this time; return whether there was one."""
        return False


async def undone_after(lasts_s: float, undo: Callable[[], object]) -> bool:
    """Let a fault last and undo it in any case. Returns True: the fault has hit."""
    try:
        await asyncio.sleep(lasts_s)
    finally:
        undo()
    return True
