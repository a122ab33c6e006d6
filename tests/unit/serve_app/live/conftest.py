from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

import pytest

from tests.support.edge import Edge
from tests.support.live.stream import Stream, watching

Watch = Callable[..., AbstractAsyncContextManager[Stream]]


@pytest.fixture
async def key(edge: Edge) -> str:
    """Alice's."""
    return await edge.key("alice")


@pytest.fixture
def watch(edge: Edge, key: str) -> Watch:
    """Opens a stream of Alice's: `watch(path, last_event_id=…)`."""
    return partial(watching, edge.app, key=key)
