"""Tiny models of the families of transformers, made once, and an engine over them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.families.family import Family
from tests.support.engine.engines import Running, running
from tests.support.engine.workflows import Submit
from training.tiny_transformers import write_flux, write_folder, write_whole, write_z_image

Made = dict[str, Any]


@pytest.fixture(scope="session")
def transformers_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("transformers")


@pytest.fixture(scope="session")
def z_image(transformers_root: Path) -> Made:
    """The modules of the tiny Z-Image, which is there in parts, as one file and as a folder."""
    made = write_z_image(transformers_root)
    checkpoints = transformers_root / "checkpoints"
    write_whole(checkpoints / "whole.safetensors", Family.Z_IMAGE, made)
    made["tokenizer"].save(str(checkpoints / "whole.config/tokenizer.json"))
    write_folder(checkpoints / "folder", made)
    return made


@pytest.fixture(scope="session")
def flux(transformers_root: Path) -> Made:
    """The modules of the tiny Flux dev."""
    return write_flux(transformers_root)


@pytest.fixture(scope="session")
def flow(transformers_root: Path, z_image: Made, flux: Made) -> Iterator[Running]:
    """An engine over both."""
    with running(transformers_root) as found:
        yield found


@pytest.fixture(scope="session")
def start(flow: Running) -> Submit:
    return flow.submit


@pytest.fixture(scope="module")
def root(flow: Running, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny models, and a folder for LoRAs and for networks with them."""
    root = tmp_path_factory.mktemp("transformer-loras")
    for folder in flow.models.root.iterdir():
        (root / folder.name).mkdir()
        for file in folder.iterdir():
            (root / folder.name / file.name).symlink_to(file)
    (root / "loras").mkdir()
    return root
