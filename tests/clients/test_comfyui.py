"""Clients of ComfyUI run against Darkroom: only the address is another, and there is a key.

comfy-api-simplified is one as it comes from the package index. The others have the shapes of
ComfyUI's own examples.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.clients.programs import client_python, run

HERE = Path(__file__).parent / "comfyui"

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.parametrize(
    ("program", "printed"),
    [("basic", "picture\n"), ("listening", "1 output\n"), ("simplified", "pictures\n")],
)
def test_a_client_makes_a_picture(
    caller: Mapping[str, str], tmp_path: Path, program: str, printed: str
) -> None:
    text = Path("examples/workflow.json").read_text().replace("-shapes", "-tiny")
    environment = {**caller, "PROMPT": json.dumps(json.loads(text)["prompt"]), "PYTHONPATH": ""}
    run_of = HERE / f"{program}.py"
    assert run(client_python(), run_of, cwd=tmp_path, env=environment) == printed
