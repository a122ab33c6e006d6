"""The release before this version beside it, on one log, one database and one image store."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import pytest

from serve_app.local.nats_server import NatsServer
from tests.support.service import Service

ROOT = Path(__file__).parents[2]
PREVIOUS = "e137c7489020"
"""The last commit of release 0.1.0. A release moves it, and `.ci/run` needs its history."""


@pytest.fixture(scope="module")
def previous_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its source. It runs in the environment of this version."""
    archive = subprocess.run(
        ["git", "archive", PREVIOUS], cwd=ROOT, capture_output=True, check=False, timeout=60
    )
    if archive.returncode:
        pytest.skip(f"commit {PREVIOUS} is not in this checkout: it has no history")
    folder = tmp_path_factory.mktemp("previous")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


@dataclass(frozen=True)
class Versions:
    old: Service
    new: Service
    nats_url: str


@pytest.fixture(scope="module")
def versions(
    previous_version: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Versions]:
    """Neither is started. Each has a Ray of its own, as it has in a rolling update."""
    shared = tmp_path_factory.mktemp("shared")
    with ExitStack() as stack:
        nats = NatsServer(shared / "nats", preferred_port=0)
        nats.start()
        stack.callback(nats.stop)
        settings = {
            "DARKROOM_NATS_URL": nats.url,
            "DARKROOM_DATABASE_URL": f"sqlite+aiosqlite:///{shared / 'darkroom.sqlite3'}",
            "DARKROOM_IMAGES_URL": (shared / "images").as_uri(),
            "DARKROOM_SECRET": "the secret of both versions",
        }

        def service(name: str, source: Path) -> Service:
            each = Service(tmp_path_factory.mktemp(name) / "data", **settings)
            each.source, each.environment["PYTHONPATH"] = source, str(source)
            stack.callback(each.close)
            return each

        yield Versions(service("old", previous_version), service("new", ROOT), nats.url)
