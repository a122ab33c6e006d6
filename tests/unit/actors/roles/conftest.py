from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from events.store.database import Database
from tests.support.database import database_in
from tests.support.routing.bench import Bench


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with database_in(tmp_path) as database:
        yield database


@pytest.fixture
def bench(database: Database) -> Bench:
    """A router, whose jobs are a minute old."""
    return Bench(database)
