"""The example package of nodes, installed and run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest

from engine.extensions import Extension, installed_extensions
from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from tests.support.engine.engines import running
from tests.support.engine.extensions import forget, install_example
from tests.support.engine.workflows import node

GREY = 0x808080
PROMPT = {
    "1": node("EmptyImage", width=33, height=17, batch_size=2, color=GREY),
    "2": node("ExampleVignette", image=["1", 0], strength=1.0),
    "3": node("ExampleBoxBlur", image=["2", 0], radius=1),
    "4": node("SaveImage", images=["2", 0], filename_prefix="x"),
    "5": node("SaveImage", images=["3", 0], filename_prefix="x"),
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_example(tmp_path_factory.mktemp("example"))


@pytest.fixture
def extension(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Extension]:
    monkeypatch.syspath_prepend(installed)
    (found,) = installed_extensions()
    yield found
    forget("darkroom_example_nodes")


def test_it_is_found_by_its_entry_point(extension: Extension, tmp_path: Path) -> None:
    assert str(extension) == "darkroom-example-nodes 1.0"
    info = Catalogue(ModelsFolder(tmp_path), extension.node_types).object_info()
    assert info["ExampleVignette"]["python_module"] == "custom_nodes.darkroom-example-nodes"
    assert info["ExampleVignette"]["description"] == "Darkens images towards their corners."
    assert info["KSampler"]["python_module"] == "nodes"


def test_its_nodes_run(extension: Extension, tmp_path: Path) -> None:
    with running(tmp_path, extension.node_types) as engine:
        images = engine.submit(PROMPT).images()
    dark, _, blurred, _ = (each.pixels.astype(int) for each in images)
    assert dark[8, 16].tolist() == [0x80] * 3
    assert dark[0, 0].tolist() == [0] * 3
    mean = dark[1:-1, 1:-1]
    assert np.abs(blurred[1:-1, 1:-1] - mean).max() <= 8
    assert blurred[0, 0, 0] > dark[0, 0, 0]


def test_processes_without_a_device_load_no_torch_for_it(installed: Path) -> None:
    program = (
        "import sys; from engine.extensions import installed_extensions; "
        "print(*installed_extensions()); sys.exit('torch' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": f"{installed}:{Path(__file__).parents[4]}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert found.stdout == "darkroom-example-nodes 1.0\n"
