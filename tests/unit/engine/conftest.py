"""A tiny checkpoint, made once, and an engine over it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.catalogue import Catalogue
from engine.engine import Engine
from engine.graph import Limits, validate
from engine.models_folder import ModelsFolder
from tests.unit.engine.workflows import DEADLINE_S, TINY, Watched, text_to_image

ROOT = Path(__file__).parents[3]


@pytest.fixture
def prompt() -> Callable[..., dict[str, Any]]:
    return text_to_image


@pytest.fixture(scope="session")
def tiny_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    out = root / "checkpoints" / TINY
    command = [sys.executable, "-m", "models.make_tiny", str(out)]
    subprocess.run(command, check=True, cwd=ROOT, timeout=DEADLINE_S)
    return root


@pytest.fixture(scope="session")
def families_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stable Diffusion 2 and XL, each as a file and as a folder of the same weights."""
    from models.tiny_families import FAMILIES, write_family

    root = tmp_path_factory.mktemp("families")
    for family in FAMILIES:
        place = root / "checkpoints"
        write_family(family, place / f"{family}.safetensors", place / f"{family}-folder")
    return root


@pytest.fixture
def empty_catalogue(tmp_path: Path) -> Catalogue:
    """A catalogue that lists a file named like the tiny checkpoint, without torch or weights."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / TINY).touch()
    return Catalogue(ModelsFolder(tmp_path))


@pytest.fixture(scope="session")
def catalogue(tiny_root: Path) -> Catalogue:
    return Catalogue(ModelsFolder(tiny_root))


@pytest.fixture(scope="session")
def engine(tiny_root: Path) -> Iterator[Engine]:
    engine = Engine(models=ModelsFolder(tiny_root))
    engine.start()
    yield engine
    engine.stop()


@pytest.fixture(scope="session")
def submit(engine: Engine, catalogue: Catalogue) -> Callable[..., Watched]:
    """Submits a prompt and watches it."""

    def submit(prompt: dict[str, Any], **options: Any) -> Watched:
        watched = Watched()
        graph = validate(prompt, catalogue, Limits())
        watched.run = engine.submit(graph, on_event=watched.take, **options)
        return watched

    return submit


@pytest.fixture(scope="session")
def run_all(submit: Callable[..., Watched]) -> Callable[..., list[Any]]:
    """The pixels of the first image of each prompt, all run at once."""

    def run_all(prompts: Sequence[dict[str, Any]]) -> list[Any]:
        watched = [submit(prompt) for prompt in prompts]
        return [each.images()[0].pixels for each in watched]

    return run_all
