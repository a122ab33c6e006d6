"""A models folder to compile diffusion requests with."""

from __future__ import annotations

import pytest

from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from tests.support.engine.workflows import TINY

FILES = (
    f"checkpoints/{TINY}",
    "checkpoints/other.safetensors",
    "loras/styles/ink.safetensors",
    "loras/grain.safetensors",
    "vae/soft.safetensors",
    "upscale_models/4x.safetensors",
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    """A catalogue of empty files, because the compiler reads only their names."""
    root = tmp_path_factory.mktemp("models")
    for name in FILES:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return Catalogue(ModelsFolder(root))
