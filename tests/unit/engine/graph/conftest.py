from __future__ import annotations

import pytest

from engine.graph.catalogue import Catalogue


@pytest.fixture
def catalogue(empty_catalogue: Catalogue) -> Catalogue:
    """Checking a graph reads only the names of models."""
    return empty_catalogue
