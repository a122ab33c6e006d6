"""Running services that several files share: each test uses jobs and endpoints of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from examples.receiver import Receiver
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


@pytest.fixture(scope="session")
def endpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that declares an endpoint in a file, without workers and limits of owners."""
    folder = tmp_path_factory.mktemp("endpoints")
    file = folder / "endpoints.yaml"
    file.write_text("endpoints: {default: {max_steps: 60}, declared: {gpus: 0, cpus: 0.5}}")
    with Service(
        folder / "data",
        DARKROOM_ENDPOINTS_FILE=str(file),
        DARKROOM_MIN_WORKERS="0",
        DARKROOM_OWNER_MAX_OPEN_JOBS="0",
        DARKROOM_OWNER_RATE_PER_S="0",
    ) as service:
        yield service


@pytest.fixture
def receiver(service: Service) -> Iterator[Receiver]:
    with service.receiver() as receiver:
        yield receiver
