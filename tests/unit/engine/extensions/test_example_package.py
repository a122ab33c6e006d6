"""The example package of nodes, installed and run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.engine import Engine
from engine.extensions.installed import Extension, installed_extensions, nodes_of
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.nodes import NODE_TYPES
from tests.support.engine.extensions import forget, install_example
from tests.support.engine.workflows import Watched, node

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


def catalogue(extension: Extension, folder: Path) -> Catalogue:
    return Catalogue(ModelsFolder(folder), (*NODE_TYPES, *nodes_of([extension])))


def images_of(engine: Engine, prompt: Any, nodes: Catalogue) -> list[Any]:
    watched = Watched()
    engine.submit(validate(prompt, nodes, Limits()), on_event=watched.take)
    return [each.pixels.astype(int) for each in watched.images()]


def test_it_is_found_by_its_entry_point(extension: Extension, tmp_path: Path) -> None:
    assert str(extension) == "darkroom-example-nodes 1.0"
    info = catalogue(extension, tmp_path).object_info()
    assert info["ExampleVignette"]["python_module"] == "custom_nodes.darkroom-example-nodes"
    assert info["ExampleVignette"]["description"] == "Darkens images towards their corners."
    assert info["KSampler"]["python_module"] == "nodes"


def test_its_nodes_run(extension: Extension, tmp_path: Path) -> None:
    engine = Engine(models=ModelsFolder(tmp_path), more_nodes=extension.node_types)
    engine.start()
    try:
        dark, _, blurred, _ = images_of(engine, PROMPT, catalogue(extension, tmp_path))
    finally:
        engine.stop()
    assert dark[8, 16].tolist() == [0x80] * 3
    assert dark[0, 0].tolist() == [0] * 3
    mean = dark[1:-1, 1:-1]
    assert np.abs(blurred[1:-1, 1:-1] - mean).max() <= 8
    assert blurred[0, 0, 0] > dark[0, 0, 0]


def test_processes_without_a_device_load_no_torch_for_it(installed: Path) -> None:
    program = (
        "import sys; from engine.extensions.installed import installed_extensions; "
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
