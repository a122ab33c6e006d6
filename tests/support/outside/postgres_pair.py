"""A Postgres and its standby: commits wait until the standby has them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.database import Postgres, postgres_server


@dataclass(frozen=True, slots=True)
class Pair:
    primary: Postgres
    standby: Postgres

    def fail_over(self) -> None:
        """Kill the primary and promote the standby."""
        self.primary.stop()
        self.standby.promote()


@contextmanager
def postgres_pair() -> Iterator[Pair]:
    with postgres_server() as primary:
        # Not pytest's own folder: see `postgres_server`.
        folder = Path(tempfile.mkdtemp(prefix="darkroom-pg-"))
        standby = Postgres(primary.programs, folder)
        try:
            standby.copy(primary)
            standby.start()
            primary.wait_for_copies()
            try:
                yield Pair(primary, standby)
            finally:
                standby.stop()
        finally:
            shutil.rmtree(folder)
