from __future__ import annotations

import pytest

from engine.graph.catalogue import Catalogue
from tests.support.engine.graphs import catalogue_of
from tests.support.engine.workflows import TINY


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    """A catalogue of empty files, because the compiler reads only their names."""
    return catalogue_of(
        tmp_path_factory.mktemp("models"),
        f"checkpoints/{TINY}",
        "checkpoints/other.safetensors",
        "loras/styles/ink.safetensors",
        "loras/grain.safetensors",
        "vae/soft.safetensors",
        "upscale_models/4x.safetensors",
    )
