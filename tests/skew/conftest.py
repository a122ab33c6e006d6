"""The previous release and this version on one log, one database and one image store."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import pytest

from local.nats_server import NatsServer
from tests.support.service import Service

ROOT = Path(__file__).parents[2]
FIRST = (0, 2, 0)
"""The first release whose data later versions read."""


def previous_release() -> str | None:
    """The tag of the newest release, from `FIRST` on, that is older than this commit."""
    listed = subprocess.run(
        ["git", "tag", "--list", "v*", "--merged", "HEAD", "--no-contains", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    versions = {
        tuple(map(int, tag.removeprefix("v").split("."))): tag
        for tag in listed.stdout.split()
        if re.fullmatch(r"v\d+\.\d+\.\d+", tag)
    }
    newest = max((each for each in versions if each >= FIRST), default=None)
    return None if newest is None else versions[newest]


@pytest.fixture(scope="module")
def previous_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the previous release. It runs in the environment of this version."""
    tag = previous_release()
    if tag is None:
        first = ".".join(map(str, FIRST))
        pytest.skip(f"this checkout has no tag of a release from {first} on before this commit")
    archive = subprocess.run(
        ["git", "archive", tag], cwd=ROOT, capture_output=True, check=True, timeout=60
    )
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
    """Both versions, not started. Each has a separate Ray, as in a rolling update."""
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
            each.source = source
            each.environment["PYTHONPATH"] = os.pathsep.join((str(source), str(source / "client")))
            stack.callback(each.close)
            return each

        yield Versions(service("old", previous_version), service("new", ROOT), nats.url)
