"""Comfy API v2's client from the package index, unchanged, against a running service."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.clients.programs import client_python, run
from tests.support.service import CHECKPOINT

pytestmark = pytest.mark.timeout(1200)


def test_the_ways_of_its_readme(caller: Mapping[str, str], tmp_path: Path) -> None:
    program = Path(__file__).with_name("comfy_jobs.py")
    environment = {**caller, "COMFY_BASE_URL": caller["URL"], "CHECKPOINT": CHECKPOINT}
    assert run(client_python(), program, cwd=tmp_path, env=environment) == "completed\n"
