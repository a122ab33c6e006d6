"""A package of nodes that is installed beside the service, from its list to a picture."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from examples.service import DARKROOM
from tests.support.service import Service

pytestmark = pytest.mark.timeout(1200)

PROMPT = {
    "1": {
        "class_type": "EmptyImage",
        "inputs": {"width": 32, "height": 32, "batch_size": 1, "color": 0xFFFFFF},
    },
    "2": {"class_type": "ExampleVignette", "inputs": {"image": ["1", 0], "strength": 0.5}},
    "3": {"class_type": "ExampleBoxBlur", "inputs": {"image": ["2", 0], "radius": 2}},
    "4": {"class_type": "SaveImage", "inputs": {"images": ["3", 0], "filename_prefix": "x"}},
}


def test_its_nodes_are_listed_and_run(service: Service) -> None:
    assert "darkroom-example-nodes 1.0 (2)" in service.output
    info = service.http.get("/v1/object_info").json()
    assert info["ExampleBoxBlur"]["python_module"] == "custom_nodes.darkroom-example-nodes"
    request_id = service.submit("workflow", {"prompt": PROMPT})
    result = service.ended(request_id, "workflow")
    assert result["status"] == 1, result
    assert len(result["results"]) == 1


def test_nothing_starts_beside_a_package_that_cannot_be_used(tmp_path: Path) -> None:
    described = tmp_path / "bad_nodes-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-nodes\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[darkroom.nodes]\nbad = no_such_module\n")
    given = os.environ.get("PYTHONPATH", "")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(tmp_path), given))),
        "DARKROOM_DATA_DIR": str(tmp_path / "data"),
    }
    ended = subprocess.run(
        [DARKROOM, "up"], check=False, env=environment, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 1
    said = " ".join(ended.stderr.split())
    assert "bad-nodes 1.0, entry point bad = no_such_module: ModuleNotFoundError" in said
    assert not (tmp_path / "data").exists()
