from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.database import database_in
from tests.support.operations.installation import Installation


@pytest.fixture
async def installation(tmp_path: Path) -> AsyncIterator[Installation]:
    """With jobs of every kind; nothing disagrees."""
    async with database_in(tmp_path) as database:
        installation = Installation(tmp_path / "images", database)
        await installation.fill()
        yield installation
