"""One running service, its OpenAPI document, and the key with which clients call it.

With `COMFYUI_DIR`, workflows run on this install of ComfyUI, because only it has the checkpoint in
`COMFYUI_CHECKPOINT`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.programs import CHECKPOINT
from tests.support.polling import eventually
from tests.support.service import Service

COMFYUI_DIR = os.environ.get("COMFYUI_DIR")


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("clients")
    settings = {}
    if COMFYUI_DIR:
        settings["DARKROOM_COMFYUI_DIR"] = COMFYUI_DIR
        settings["DARKROOM_MODELS_DIR"] = str(tmp_path_factory.mktemp("models"))
    with Service(folder / "data", **settings) as service:
        if COMFYUI_DIR:
            wait_for_checkpoint(service)
        yield service


def wait_for_checkpoint(service: Service) -> None:
    """Wait until the ComfyUI server has declared its checkpoints."""
    url = "/object_info/CheckpointLoaderSimple?endpoint=comfyui"
    asyncio.run(eventually(lambda: CHECKPOINT in service.http.get(url).text))


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
