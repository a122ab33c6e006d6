"""A tiny checkpoint, made once, and an engine over it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.engine import Engine
from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from tests.support.engine import parity
from tests.support.engine.engines import Running, running
from tests.support.engine.graphs import catalogue_of
from tests.support.engine.workflows import TINY, Prompt, RunAll, Submit


@pytest.fixture(scope="session")
def tiny_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from training.make_tiny import write_checkpoint

    root = tmp_path_factory.mktemp("models")
    write_checkpoint(root / "checkpoints" / TINY)
    return root


@pytest.fixture(scope="session")
def families_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stable Diffusion 2 and XL, each as a file and as a folder of the same weights."""
    from training.tiny_families import FAMILIES, write_family

    root = tmp_path_factory.mktemp("families")
    for family in FAMILIES:
        place = root / "checkpoints"
        write_family(family, place / f"{family}.safetensors", place / f"{family}-folder")
    return root


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    """The small checkpoint whose pictures ComfyUI has made; needs DARKROOM_PARITY_DIR."""
    root = tmp_path_factory.mktemp("small")
    checkpoint = root / "checkpoints" / parity.SMALL
    parity.write_checkpoint("small", checkpoint)
    if not parity.has_known_digest(checkpoint):
        pytest.skip("this torch makes other weights")
    return Catalogue(ModelsFolder(root))


@pytest.fixture
def empty_catalogue(tmp_path: Path) -> Catalogue:
    """A catalogue that lists a file named like the tiny checkpoint, without torch or weights."""
    return catalogue_of(tmp_path, f"checkpoints/{TINY}")


@pytest.fixture(scope="session")
def tiny(tiny_root: Path) -> Iterator[Running]:
    with running(tiny_root) as found:
        yield found


@pytest.fixture(scope="session")
def catalogue(tiny_root: Path) -> Catalogue:
    return Catalogue(ModelsFolder(tiny_root))


@pytest.fixture(scope="session")
def engine(tiny: Running) -> Engine:
    return tiny.engine


@pytest.fixture(scope="session")
def submit(tiny: Running) -> Submit:
    """Submits a prompt and watches it."""
    return tiny.submit


@pytest.fixture(scope="session")
def run_all(submit: Submit) -> RunAll:
    """The pixels of the first image of each prompt, all run at once."""

    def run_all(prompts: Sequence[Prompt]) -> list[Any]:
        watched = [submit(prompt) for prompt in prompts]
        return [each.images()[0].pixels for each in watched]

    return run_all
