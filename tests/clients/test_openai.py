"""OpenAI's client from the package index, unchanged, against a running service."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.clients.programs import client_python, run

pytestmark = pytest.mark.timeout(1200)


def test_it_makes_edits_and_streams_pictures(caller: Mapping[str, str], tmp_path: Path) -> None:
    program = Path(__file__).with_name("openai_images.py")
    assert run(client_python(), program, cwd=tmp_path, env=caller) == "completed\n"
