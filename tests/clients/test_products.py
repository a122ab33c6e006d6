"""Clients of other products, as they are in the package index, run against Darkroom.

Only the address is another, and there is a key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.clients.programs import client_python, run

HERE = Path(__file__).parent

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ("comfy_jobs", "completed"),
        ("comfyui_simplified", "pictures"),
        ("openai_images", "completed"),
        ("webui", "completed"),
    ],
)
def test_a_client_does_what_its_readme_says(
    caller: Mapping[str, str], tmp_path: Path, program: str, printed: str
) -> None:
    text = Path("examples/workflow.json").read_text().replace("-shapes", "-tiny")
    environment = {
        **caller,
        "COMFY_BASE_URL": caller["URL"],
        "PROMPT": json.dumps(json.loads(text)["prompt"]),
        "PYTHONPATH": "",
    }
    output = run(client_python(), HERE / f"{program}.py", cwd=tmp_path, env=environment)
    assert output.splitlines()[-1] == printed
