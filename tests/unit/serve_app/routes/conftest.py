from collections.abc import AsyncGenerator

import httpx
import pytest

from events.store.records import Scope
from tests.support.edge import Edge


@pytest.fixture
async def admin(edge: Edge) -> AsyncGenerator[httpx.AsyncClient]:
    async with await edge.client("root", scopes=[Scope.ADMIN]) as client:
        yield client
