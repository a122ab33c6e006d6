"""Tiny models of the families of transformers, made once, and an engine over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.engine import Engine
from engine.families.family import Family
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from tests.support.engine.workflows import Watched
from training.tiny_transformers import write_flux, write_folder, write_whole, write_z_image


@pytest.fixture(scope="session")
def transformers_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("transformers")


@pytest.fixture(scope="session")
def z_image(transformers_root: Path) -> dict[str, Any]:
    """The modules of the tiny Z-Image, which is there in parts, as one file and as a folder."""
    made = write_z_image(transformers_root)
    checkpoints = transformers_root / "checkpoints"
    write_whole(checkpoints / "whole.safetensors", Family.Z_IMAGE, made)
    made["tokenizer"].save(str(checkpoints / "whole.config/tokenizer.json"))
    write_folder(checkpoints / "folder", made)
    return made


@pytest.fixture(scope="session")
def flux(transformers_root: Path) -> dict[str, Any]:
    """The modules of the tiny Flux dev."""
    return write_flux(transformers_root)


@pytest.fixture(scope="session")
def flow_engine(
    transformers_root: Path, z_image: dict[str, Any], flux: dict[str, Any]
) -> Iterator[Engine]:
    engine = Engine(models=ModelsFolder(transformers_root))
    engine.start()
    yield engine
    engine.stop()


@pytest.fixture(scope="session")
def start(flow_engine: Engine, transformers_root: Path) -> Callable[..., Watched]:
    """Starts a graph and watches it."""
    catalogue = Catalogue(ModelsFolder(transformers_root))

    def start(graph: dict[str, Any], **options: Any) -> Watched:
        watched = Watched()
        checked = validate(graph, catalogue, Limits())
        watched.run = flow_engine.submit(checked, on_event=watched.take, **options)
        return watched

    return start


@pytest.fixture(scope="module")
def root(
    z_image: dict[str, Any],
    flux: dict[str, Any],
    transformers_root: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The tiny models, and a folder for LoRAs and for networks with them."""
    root = tmp_path_factory.mktemp("transformer-loras")
    for folder in transformers_root.iterdir():
        (root / folder.name).mkdir()
        for file in folder.iterdir():
            (root / folder.name / file.name).symlink_to(file)
    (root / "loras").mkdir()
    return root
