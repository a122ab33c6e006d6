from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.errors import ParametersInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.safetensors_header import Header, read_header
from engine.webui.compiler import compile_parameters
from engine.webui.family_defaults import default_side, with_family_defaults
from engine.webui.parameters import parse_parameters


def test_default_size_is_that_of_the_checkpoints_kind(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "xl"
    folder.mkdir(parents=True)
    for pipeline, side in (("StableDiffusionXLPipeline", 1024), ("StableDiffusionPipeline", 512)):
        (folder / "model_index.json").write_text(f'{{"_class_name": "{pipeline}"}}')
        catalogue = Catalogue(ModelsFolder(tmp_path))
        parameters = parse_parameters({"prompt": "x", "seed": 1, "height": 256})
        (made,) = compile_parameters(
            parameters, catalogue, Limits(), default_checkpoint="xl"
        ).passes
        assert (made.width, made.height) == (side, 256)


def test_a_checkpoint_is_looked_into_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counted(path: Path) -> Header:
        read.append(path.name)
        return read_header(path)

    monkeypatch.setattr("engine.families.recognition.read_header", counted)
    models, checkpoint = ModelsFolder(tmp_path, ttl_s=0), tmp_path / "x.safetensors"
    for length in (1, 2):
        save_file({"x": np.zeros(length, np.float32)}, checkpoint)
        for _ in range(3):
            assert default_side(models, checkpoint.name) == 512
    assert len(read) == 2


Z_IMAGE = ("model.diffusion_model.cap_pad_token", "text_encoders.x")
FLUX = ("model.diffusion_model.double_blocks.0.img_attn.qkv.weight", "text_encoders.x")


@pytest.fixture
def models(tmp_path: Path) -> ModelsFolder:
    for name, keys in (("z", Z_IMAGE), ("flux", FLUX), ("other", ("x",))):
        save_file({key: np.zeros(1, np.float32) for key in keys}, tmp_path / f"{name}.safetensors")
    return ModelsFolder(tmp_path)


def usual(models: ModelsFolder, checkpoint: str, **body: Any) -> dict[str, Any]:
    """What is recorded of a request for that checkpoint."""
    asked = {"prompt": "x", **body}
    found = with_family_defaults(parse_parameters(asked), asked, models, default=checkpoint)
    return found.recorded()


@pytest.mark.parametrize(
    ("checkpoint", "steps", "sampler"),
    [("z", 8, "RES Multistep"), ("flux.safetensors", 20, "Euler")],
)
def test_what_a_request_leaves_open_is_usual_for_its_family(
    checkpoint: str, steps: int, sampler: str, models: ModelsFolder
) -> None:
    assert usual(models, checkpoint) == {
        "prompt": "x",
        "compatibility": "comfyui",
        "steps": steps,
        "cfg_scale": 1.0,
        "sampler_name": sampler,
        "scheduler": "Simple",
    }


def test_what_a_request_says_is_kept(models: ModelsFolder) -> None:
    said = {"steps": 30, "cfg_scale": 4.0, "sampler_name": "DPM++ 2M Karras"}
    found = usual(models, "z", **said)
    assert found == {"prompt": "x", "compatibility": "comfyui", **said}
    assert usual(models, "other", sd_model_checkpoint="z")["steps"] == 8


@pytest.mark.parametrize("checkpoint", ["other", "missing", None])
def test_others_take_what_they_always_took(checkpoint: str | None, models: ModelsFolder) -> None:
    asked = {"prompt": "x"}
    given = parse_parameters(asked)
    assert with_family_defaults(given, asked, models, default=checkpoint) == given


def test_a_scale_of_guidance_is_told_to_flux_alone(models: ModelsFolder) -> None:
    asked = {"prompt": "x", "seed": 1, "distilled_cfg_scale": 2.5}
    compiled = partial(compile_parameters, parse_parameters(asked), Catalogue(models), Limits())
    prompt = compiled(default_checkpoint="flux.safetensors").prompt
    assert prompt["text"]["inputs"]["guidance"] == 2.5
    with pytest.raises(ParametersInvalid, match=r"is for Flux\.1, and z\.safet.* is Z-Image"):
        compiled(default_checkpoint="z.safetensors")
