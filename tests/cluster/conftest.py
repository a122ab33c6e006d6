"""A cluster with the service, for all tests of a module."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.cluster.parts.local_cluster import LocalCluster, local_cluster


@pytest.fixture(scope="module", autouse=True)
def token() -> None:
    """Create the token with which Ray's nodes and commands authenticate."""
    path = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    if not path.exists():
        path.write_text(secrets.token_hex(32))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[LocalCluster]:
    """A cluster without started nodes."""
    async with local_cluster() as started:
        yield started
