"""What the console's pure modules do, in the words of `scripts/`, which node runs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
STATIC = Path("serve_app/console/static")
OLDEST = (20, 19)
"""The first that takes modules without being told what they are."""


def node() -> str:
    found = shutil.which("node")
    if found is None:
        pytest.skip("node is not installed")
    version = subprocess.run([found, "--version"], check=True, capture_output=True, text=True)
    if tuple(map(int, re.findall(r"\d+", version.stdout)[:2])) < OLDEST:
        pytest.skip(f"node {version.stdout.strip()} is older than {OLDEST}")
    return found


def run(*arguments: str | Path) -> None:
    done = subprocess.run(
        [node(), *arguments], check=False, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_pure_modules_do_what_they_say() -> None:
    run("--test", *sorted((HERE / "scripts").glob("*.test.mjs")))


@pytest.mark.parametrize("folder", [".", "lib", "pages", "parts", "pure"])
def test_every_module_can_be_read(folder: str) -> None:
    for path in sorted((STATIC / folder).glob("*.js")):
        run("--check", path)
