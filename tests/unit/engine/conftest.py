"""A tiny checkpoint, made once, and an engine over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.engine import Engine
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from tests.support.engine import parity
from tests.support.engine.workflows import TINY, Watched, text_to_image


@pytest.fixture
def prompt() -> Callable[..., dict[str, Any]]:
    return text_to_image


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
    """Submits a prompt, valid within `limits`, and watches it."""

    def submit(prompt: dict[str, Any], *, limits: Limits | None = None, **options: Any) -> Watched:
        watched = Watched()
        graph = validate(prompt, catalogue, limits or Limits())
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
