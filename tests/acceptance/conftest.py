"""One running service for the tests that leave it as they found it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.engine.extensions import install_example
from tests.support.service import Service


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("acceptance") / "data")
    own_nodes = str(install_example(tmp_path_factory.mktemp("own-nodes")))
    given = service.environment.get("PYTHONPATH", "")
    service.environment["PYTHONPATH"] = os.pathsep.join(filter(None, (own_nodes, given)))
    with service:
        yield service
