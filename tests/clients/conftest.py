"""One running service, its OpenAPI document, and the key with which clients call it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.service import Service


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("clients") / "data") as service:
        yield service


@pytest.fixture(scope="session")
def document(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("document") / "openapi.json"
    path.write_bytes(service.http.get("/openapi.json").content)
    return path


@pytest.fixture(scope="session")
def caller(service: Service) -> dict[str, str]:
    """The environment of a client's program."""
    key = service.command("keys", "create", "clients").stdout.split()[0]
    return {**os.environ, "URL": service.url, "KEY": key}
