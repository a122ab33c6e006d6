"""An installation with jobs of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from events.store.database import Database
from tests.support.operations.installation import Installation


@pytest.fixture
async def installation(database: Database, tmp_path: Path) -> Installation:
    installation = Installation(tmp_path / "images", database)
    await installation.fill()
    return installation
