"""Programs that a test runs."""

from __future__ import annotations

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
