"""Programs that a test runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import tests.support.service

CHECKPOINT = os.environ.get("COMFYUI_CHECKPOINT", tests.support.service.CHECKPOINT)


def run(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Run a program and return its output."""
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
    """The Python that has what clients need, and nothing of ours. `make clients` finds it."""
    tool = shutil.which("openapi-python-client")
    assert tool is not None, "run this as `make clients`"
    return Path(tool).with_name("python")
