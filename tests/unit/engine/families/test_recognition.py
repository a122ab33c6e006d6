"""Headers of files, and the families that are told from them alone, without torch."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.errors import CheckpointUnavailable
from engine.families.family import Family
from engine.families.recognition import family_of
from engine.graph.models_folder import ModelsFolder
from engine.graph.safetensors_header import read_header

SD = ("model.diffusion_model.x", "first_stage_model.x")


def write(path: Path, shapes: dict[str, list[int]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({key: np.zeros(shape, np.float16) for key, shape in shapes.items()}, path)


@pytest.mark.parametrize(
    ("keys", "family"),
    [
        ((*SD, "cond_stage_model.transformer.x"), Family.SD1),
        ((*SD, "cond_stage_model.model.x"), Family.SD2),
        (
            (*SD, "conditioner.embedders.0.transformer.x", "conditioner.embedders.1.model.x"),
            Family.SDXL,
        ),
        ((*SD, "conditioner.embedders.0.model.x"), Family.SDXL_REFINER),
        (("model.diffusion_model.cap_pad_token", "text_encoders.x"), Family.Z_IMAGE),
        (
            ("model.diffusion_model.double_blocks.0.img_attn.qkv.weight", "text_encoders.x"),
            Family.FLUX,
        ),
        (("double_blocks.0.img_attn.qkv.weight",), None),
        (SD, None),
    ],
)
def test_a_checkpoints_family_is_told_from_its_names(
    keys: tuple[str, ...], family: Family | None, tmp_path: Path
) -> None:
    write(tmp_path / "checkpoints" / "x.safetensors", {key: [1] for key in keys})
    assert family_of(ModelsFolder(tmp_path), "checkpoints", "x.safetensors") == family


@pytest.mark.parametrize(
    ("key", "width", "family"),
    [
        ("lora_unet_x_attn2_to_k.lora_down.weight", 768, Family.SD1),
        ("unet.x.attn2.to_k.lora_A.weight", 1024, Family.SD2),
        ("unet.x.attn2.to_k.lora.down.weight", 2048, Family.SDXL),
        ("lora_te_x.lora_down.weight", 768, None),
    ],
)
def test_a_loras_family_is_told_from_the_width_of_its_text(
    key: str, width: int, family: Family | None, tmp_path: Path
) -> None:
    write(tmp_path / "loras" / "x.safetensors", {key: [4, width]})
    assert family_of(ModelsFolder(tmp_path), "loras", "x.safetensors") == family


def test_other_kinds_and_broken_files_have_none(tmp_path: Path) -> None:
    write(tmp_path / "vae" / "x.safetensors", {"cond_stage_model.transformer.x": [1]})
    (tmp_path / "top.safetensors").write_bytes(b"no header")
    models = ModelsFolder(tmp_path)
    assert family_of(models, "vae", "x.safetensors") is None
    assert family_of(models, "checkpoints", "top.safetensors") is None
    assert family_of(models, "checkpoints", "missing.safetensors") is None


@pytest.mark.parametrize(
    ("pipeline", "family"),
    [
        ("StableDiffusionXLPipeline", Family.SDXL),
        ("ZImagePipeline", Family.Z_IMAGE),
        ("FluxPipeline", Family.FLUX),
        ("StableDiffusionPipeline", None),
    ],
)
def test_a_folders_family_is_told_from_its_pipeline(
    pipeline: str, family: Family | None, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints" / "x"
    folder.mkdir(parents=True)
    (folder / "model_index.json").write_text(f'{{"_class_name": "{pipeline}"}}')
    assert family_of(ModelsFolder(tmp_path), "checkpoints", "x") == family


@pytest.mark.parametrize(
    "pipeline", ["DiffusionPipeline", "StableDiffusionXLPipeline", "[" * 10**5]
)
def test_a_folders_transformer_tells_its_family_whatever_the_pipeline_is_called(
    pipeline: str, tmp_path: Path
) -> None:
    transformer = tmp_path / "checkpoints" / "x" / "transformer"
    transformer.mkdir(parents=True)
    mark = f'{{"_class_name": "{pipeline}"}}' if pipeline.isalpha() else pipeline
    (transformer.parent / "model_index.json").write_text(mark)
    assert family_of(ModelsFolder(tmp_path), "checkpoints", "x") == (
        Family.SDXL if "XL" in pipeline else None
    )
    for name, family in (("Flux", Family.FLUX), ("ZImage", Family.Z_IMAGE)):
        config = f'{{"_class_name": "{name}Transformer2DModel"}}'
        (transformer / "config.json").write_text(config)
        (transformer.parent / "model_index.json").write_text(f"{mark} ")
        os.utime(transformer.parent / "model_index.json", ns=(0, len(name)))
        assert family_of(ModelsFolder(tmp_path), "checkpoints", "x") == family


def test_what_is_no_file_is_said_to_be_none(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.safetensors"
    os.mkfifo(pipe)
    with pytest.raises(
        CheckpointUnavailable, match="is not a file that a models folder may contain"
    ):
        read_header(pipe)


def test_the_shapes_are_those_of_the_file(tmp_path: Path) -> None:
    write(tmp_path / "x.safetensors", {"x": [3, 5], "y": []})
    assert read_header(tmp_path / "x.safetensors").shapes == {"x": (3, 5), "y": ()}


@pytest.mark.parametrize("kept", [0, 5, 40, -1])
def test_a_file_that_was_cut_short_is_damaged(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write(path, {"x": [1000]})
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointUnavailable, match="incomplete"):
        read_header(path)
