"""One running service with its default limits, an attacker and a neighbour."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.hostile.watch import Watch
from tests.support.service import Service


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("hostile") / "data"
    # Each page of metrics is new, so that a long tick is found in the test that caused it.
    with Service(folder, DARKROOM_TEST_METRICS_PAGE_S="0") as service:
        yield service


@pytest.fixture(scope="session")
def watch(service: Service) -> Iterator[Watch]:
    watch = Watch(service)
    with watch.asking():
        yield watch


@pytest.fixture(scope="session")
def attacker(service: Service) -> Iterator[httpx.Client]:
    with _caller(service, "attacker") as http:
        yield http


@pytest.fixture(scope="session")
def neighbour(service: Service) -> Iterator[httpx.Client]:
    with _caller(service, "neighbour") as http:
        yield http


def _caller(service: Service, owner: str) -> httpx.Client:
    key = service.command("keys", "create", owner).stdout.split()[0]
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.Client(base_url=service.url, headers=headers, timeout=60, trust_env=False)
