"""A ComfyUI install as `darkroom doctor` sees it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from comfyui.own_server import Install
from operations.diagnosis.comfyui_check import ComfyUICheck
from operations.diagnosis.findings import Level
from tests.support.comfyui.standin_server import FOLDER, install


async def test_an_install_is_started_and_described() -> None:
    runs, failed = await ComfyUICheck(install()).run()

    assert (runs.part, runs.level) == ("ComfyUI", Level.OK)
    assert f"ComfyUI stand-in in {FOLDER} starts" in runs.what
    assert re.search(r"with [1-9]\d node types", runs.what)
    assert failed.level is Level.WARNING
    assert "broken-pack" in failed.what


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (Install(Path("/nowhere")), "has no main.py"),
        (Install(FOLDER, FOLDER / "main.py"), "Permission denied"),
        (install("--fail-start"), "the device is not available"),
    ],
    ids=["no-install", "no-interpreter", "no-start"],
)
async def test_an_install_that_does_not_run_is_told_with_the_reason(
    broken: Install, why: str
) -> None:
    [found] = await ComfyUICheck(broken).run()

    assert found.level is Level.ERROR
    assert why in found.what
    assert found.remedy is not None


async def test_an_interpreter_without_torch_is_told(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o700)

    [found] = await ComfyUICheck(Install(FOLDER, python)).run()

    assert "No module named 'torch'" in found.what
