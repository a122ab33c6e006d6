"""Runs `darkroom up` as a child process, for programs that need the whole service."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import Self

from local.ports import held_ports

ROOT = Path(__file__).resolve().parent.parent
DARKROOM = str(Path(sys.executable).parent / "darkroom")
_POLL_S = 0.05


class DidNotStart(Exception):
    """`darkroom up` ended, or was not ready in time. The message contains its output."""


class Service:
    """One instance of the service with one data folder. It may be stopped, killed and started
    again.

    The instance uses a free port, the models of this checkout and the given `DARKROOM_*` settings.
    The `DARKROOM_*` variables of the environment are not used. The output is written to `log_path`,
    or to the terminal if `log_path` is None.
    """

    def __init__(
        self, data_dir: Path, settings: Mapping[str, str], *, log_path: Path | None = None
    ) -> None:
        self.data_dir = data_dir
        self.log_path = log_path
        self.source = ROOT
        """The checkout whose code the service runs."""
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {
            **{name: each for name, each in os.environ.items() if not name.startswith("DARKROOM_")},
            "DARKROOM_PORT": str(self.port),
            "DARKROOM_DATA_DIR": str(data_dir),
            "DARKROOM_MODELS_DIR": str(ROOT / "models"),
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self, *, timeout_s: float = 300.0) -> None:
        """Start the service and wait until it is ready.

        Raises DidNotStart, after which `close` must be called.
        """
        process = self.launch()
        give_up_at = time.monotonic() + timeout_s
        while not self.is_ready():
            if process.poll() is not None or time.monotonic() > give_up_at:
                raise DidNotStart(self.output or "see its output")
            time.sleep(_POLL_S)

    def launch(self) -> subprocess.Popen[bytes]:
        """Start the process and return at once."""
        with ExitStack() as stack:
            log = stack.enter_context(self.log_path.open("ab")) if self.log_path else None
            self._process = subprocess.Popen(
                [DARKROOM, "up"], env=self.environment, stdout=log, stderr=log, cwd=self.source
            )
        return self._process

    def is_ready(self) -> bool:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health/ready")
            return connection.getresponse().status == HTTPStatus.OK
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    def stop(self, number: int = signal.SIGINT, *, within_s: float = 30.0) -> float:
        """End the service by a signal. Returns the seconds until its end."""
        began = time.monotonic()
        self._running.send_signal(number)
        self._running.wait(within_s)
        return time.monotonic() - began

    def close(self, *, within_s: float = 30.0) -> None:
        """Stop the service if it runs."""
        if self._process is not None and self._process.poll() is None:
            self.stop(within_s=within_s)

    def command(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `darkroom` with these arguments, on this instance."""
        return subprocess.run(
            [DARKROOM, *arguments],
            env=self.environment,
            cwd=self.data_dir.parent,
            check=check,
            capture_output=True,
            text=True,
            timeout=60,
        )

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def output(self) -> str:
        """The output of the service, if it is written to a file."""
        return self.log_path.read_text() if self.log_path and self.log_path.exists() else ""

    @property
    def admin_key(self) -> str:
        return (self.data_dir / "admin.key").read_text().strip()

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the service was not started")
        return self._process


def free_port() -> int:
    """Return a port outside the range that the kernel assigns to connections."""
    with held_ports(1) as ports:
        return ports[0]
