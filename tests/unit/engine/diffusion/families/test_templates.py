"""ComfyUI's published templates of Z-Image and Flux.1 are valid, and run on tiny weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from tests.support.comfyui.official import renamed, template, with_models
from tests.support.engine.workflows import Watched

TEMPLATES = {
    "image_z_image_turbo": "z-image",
    "flux_schnell_full_text_to_image": "flux",
    "flux_dev_full_text_to_image": "flux",
    "flux_dev_checkpoint_example": "flux",
    "flux_schnell": "flux",
    "flux1_krea_dev": "flux",
}
TINY = {
    "z-image": {
        "checkpoints": "whole.safetensors",
        "diffusion_models": "tiny-z-image.safetensors",
        "clip_name": "tiny-qwen3.safetensors",
        "vae": "tiny-ae.safetensors",
    },
    "flux": {
        "checkpoints": "whole.safetensors",  # a Z-Image: no tiny Flux is one file
        "diffusion_models": "tiny-flux-dev.safetensors",
        "clip_name1": "tiny-clip-l.safetensors",
        "clip_name2": "tiny-t5xxl.safetensors",
        "vae": "tiny-flux-ae.safetensors",
    },
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_they_are_valid(name: str, tmp_path: Path) -> None:
    graph = template(name, Catalogue(ModelsFolder(tmp_path)))
    found = validate(graph, with_models(graph, tmp_path), Limits())
    assert found.cost.work > 20
    assert found.cost.outputs >= 1


@pytest.mark.parametrize("name", TEMPLATES)
def test_they_run_on_tiny_weights(
    name: str,
    start: Callable[..., Watched],
    transformers_root: Path,
    flux: dict[str, Any],
) -> None:
    catalogue = Catalogue(ModelsFolder(transformers_root))
    graph = renamed(template(name, catalogue), catalogue, TINY[TEMPLATES[name]])
    images = start(graph).images()
    assert images[0].pixels.shape == (64, 64, 3)
