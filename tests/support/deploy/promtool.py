"""Prometheus' checker, if it is installed (Debian has it in the package `prometheus`)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml


def promtool(*arguments: str | Path) -> str:
    """Return its output. Fails the test if it reports an error; skips it without promtool."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed: Debian has it in the package `prometheus`")
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def written(path: Path, content: Any) -> Path:
    path.write_text(yaml.safe_dump(content))
    return path
