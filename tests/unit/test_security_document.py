"""SECURITY.md names tests and settings that there are."""

import re
from pathlib import Path

from settings.settings import Settings

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "SECURITY.md").read_text()


def test_the_tests_that_it_names_are_there() -> None:
    named = set(re.findall(r"tests/[\w/]+\.py", DOCUMENT))
    assert len(named) > 10
    assert {path for path in named if not (ROOT / path).is_file()} == set()


def test_the_settings_that_it_names_are_there() -> None:
    named = set(re.findall(r"DARKROOM_[A-Z_]+", DOCUMENT))
    assert named
    assert named <= Settings.variables()
