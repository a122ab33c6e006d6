"""Programs that a test runs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path


def run(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """What it printed."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def client_python() -> Path:
    """The Python that has the clients of others, which `make clients` puts on the path."""
    generator = shutil.which("openapi-python-client")
    assert generator is not None, "run this as `make clients`"
    return Path(generator).with_name("python")
