"""A running service with its own event log, whose parts may be killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from local.nats_server import NatsServer
from tests.support.service import Service, diffusion


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """An event log that the test may stop, freeze and start."""
    server = NatsServer(tmp_path_factory.mktemp("nats"), preferred_port=0)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def chaos(nats: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    data_dir = tmp_path_factory.mktemp("chaos") / "data"
    settings = {"DARKROOM_MAX_ATTEMPTS": "2", "DARKROOM_MAX_COST": "2000"}
    with Service(data_dir, DARKROOM_NATS_URL=nats.url, **settings) as service:
        warm = service.ended(service.submit("diffusion", diffusion(steps=1)))
        assert warm["status"] == 1
        yield service
        assert service.disagreements() == ""
