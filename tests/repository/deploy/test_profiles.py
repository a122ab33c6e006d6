"""The example profiles set variables that exist, to values that are valid."""

from __future__ import annotations

from pathlib import Path

import pytest

from settings.settings import Settings

PROFILES = Path(__file__).parents[3] / "deploy/profiles"


@pytest.mark.parametrize("name", ["laptop", "gpu-node", "cluster"])
def test_a_profile_is_valid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (PROFILES / f"{name}.env").read_text().splitlines()
    values = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    assert values.keys() <= Settings.variables()
    for variable, value in values.items():
        monkeypatch.setenv(variable, value)
    Settings.load()
