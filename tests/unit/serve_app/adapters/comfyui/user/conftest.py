from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.support.edge import running_edge


@pytest.fixture
async def narrow(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A caller for whom little is kept."""
    limits = {
        "adapter_max_user_files": 2,
        "adapter_max_user_file_bytes": 60,
        "adapter_max_user_bytes": 100,
    }
    async with running_edge(tmp_path, **limits) as edge, await edge.client("alice") as client:
        yield client
