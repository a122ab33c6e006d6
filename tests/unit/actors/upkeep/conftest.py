"""A house that a janitor looks after, in a folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.database import database_in
from tests.support.upkeep import House


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    (tmp_path / "images").mkdir()
    async with database_in(tmp_path) as database:
        yield House(tmp_path / "images", database)
