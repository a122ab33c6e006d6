"""The OpenAPI document of an edge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.edge import Edge


@pytest.fixture
def document(edge: Edge) -> dict[str, Any]:
    return edge.app.openapi()


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Path, method and operation of each."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation
