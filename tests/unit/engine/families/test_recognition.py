"""Headers of files, and the families that are told from them alone, without torch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.errors import CheckpointUnavailable
from engine.families.family import Family
from engine.families.recognition import family_of, problems_of
from engine.graph.models_folder import ModelsFolder
from engine.graph.safetensors_header import read_header

_SDXL_ENCODERS = ("conditioner.embedders.0.transformer.x", "conditioner.embedders.1.model.x")
SD = ("model.diffusion_model.x", "first_stage_model.x")


def write(path: Path, shapes: dict[str, list[int]], type: Any = np.float16) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({key: np.zeros(shape, type) for key, shape in shapes.items()}, path)


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
        (("double_blocks.0.img_attn.qkv.weight",), Family.FLUX),
        (("model.diffusion_model.cap_pad_token",), Family.Z_IMAGE),
        ((*SD, "model.diffusion_model.input_blocks.0.0.weight"), Family.SD1),
        (SD, None),
    ],
)
def test_a_checkpoints_family_is_told_from_its_names(
    keys: tuple[str, ...], family: Family | None, tmp_path: Path
) -> None:
    write(tmp_path / "checkpoints" / "x.safetensors", {key: [1] for key in keys})
    assert family_of(ModelsFolder(tmp_path), "checkpoints", "x.safetensors") == family


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (("cond_stage_model.transformer.x",), None),
        (("cond_stage_model.model.visual.x",), "of another kind than InstructPix2Pix"),
        (("cond_stage_model.transformer.x", "edm_vpred.sigma_max"), "only for Stable Diffusion XL"),
        (("cond_stage_model.transformer.x", "edm_mean"), "Playground 2.5"),
        ((*_SDXL_ENCODERS, "edm_vpred.sigma_max"), None),
    ],
)
def test_only_instruction_models_have_8_channels(
    keys: tuple[str, ...], problem: str | None, tmp_path: Path
) -> None:
    """Stable Zero123 has 8 channels, too, and a vision model in place of the text encoder."""
    shapes = {"model.diffusion_model.input_blocks.0.0.weight": [320, 8, 3, 3]}
    write(tmp_path / "checkpoints" / "x.safetensors", shapes | {key: [1] for key in keys})
    found = problems_of(ModelsFolder(tmp_path), "checkpoints", "x.safetensors").whole
    assert found is None if problem is None else problem in str(found)


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


UNET = "model.diffusion_model."
ATTENTION = f"{UNET}input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight"


@pytest.mark.parametrize(
    ("width", "more", "family"),
    [
        (768, {}, Family.SD1),
        (1024, {}, Family.SD2),
        (2048, {f"{UNET}label_emb.0.0.weight": [4, 4]}, Family.SDXL),
        (1280, {f"{UNET}label_emb.0.0.weight": [4, 4]}, Family.SDXL_REFINER),
        (40, {f"{UNET}label_emb.0.0.weight": [4, 4]}, Family.SDXL),
        (40, {}, Family.SD1),
    ],
)
def test_a_checkpoint_without_text_encoder_shows_its_family_by_the_width_of_its_texts(
    width: int, more: dict[str, list[int]], family: Family, tmp_path: Path
) -> None:
    shapes = {f"{UNET}input_blocks.0.0.weight": [4, 4, 3, 3], ATTENTION: [4, width]}
    write(tmp_path / "x.safetensors", shapes | more)
    models = ModelsFolder(tmp_path)
    assert family_of(models, "checkpoints", "x.safetensors") == family
    problems = problems_of(models, "checkpoints", "x.safetensors")
    assert problems.of({"MODEL"}) is None
    assert "has no known text encoder" in str(problems.of({"MODEL", "CLIP"}))
    assert "has no VAE" in str(problems.of({"VAE"}))


WHOLE = (*SD, "cond_stage_model.transformer.x")


@pytest.mark.parametrize(
    ("folder", "keys", "type", "problem"),
    [
        ("checkpoints", WHOLE, np.float16, None),
        ("checkpoints", (f"{UNET}joint_blocks.x", "text_encoders.x"), None, "Stable Diffusion 3"),
        ("checkpoints", (f"{UNET}double_layers.x", "text_encoders.x"), None, "AuraFlow"),
        ("checkpoints", (f"{UNET}cap_embedder.x", "text_encoders.x"), None, "Lumina 2"),
        ("checkpoints", (f"{UNET}mlp_t5.0.weight", "text_encoders.x"), None, "HunyuanDiT"),
        ("checkpoints", (*WHOLE, f"{UNET}x.weight"), np.int8, "x.weight is stored as I8"),
        ("checkpoints", (*WHOLE, "cond_stage_model.position_ids"), np.int64, None),
        ("checkpoints", ("joint_blocks.x",), None, "Stable Diffusion 3"),
        ("diffusion_models", ("cap_pad_token",), None, None),
        ("diffusion_models", ("cap_pad_token", "layers.0.weight"), np.uint8, "is stored as U8"),
        ("diffusion_models", ("cap_embedder.x",), None, "Lumina 2"),
        ("text_encoders", ("model.layers.0.self_attn.q_norm.weight",), None, None),
        ("text_encoders", ("model.layers.0.x",), None, "not a known text encoder"),
    ],
)
def test_a_header_shows_what_cannot_be_used(
    folder: str, keys: tuple[str, ...], type: Any, problem: str | None, tmp_path: Path
) -> None:
    write(tmp_path / folder / "x.safetensors", {key: [1] for key in keys}, type or np.float16)
    found = problems_of(ModelsFolder(tmp_path), folder, "x.safetensors").whole
    assert found is None if problem is None else problem in str(found)


def test_a_scale_for_each_row_cannot_be_used(tmp_path: Path) -> None:
    shapes = {"cap_pad_token": [1], "x.weight": [4, 4], "x.weight_scale": [4, 1]}
    write(tmp_path / "unet" / "x.safetensors", shapes)
    problem = problems_of(ModelsFolder(tmp_path), "diffusion_models", "x.safetensors").whole
    assert "x.weight_scale has 4 scales" in str(problem)


@pytest.mark.parametrize("folder", ["checkpoints", "loras", "vae", "controlnet"])
def test_a_damaged_file_cannot_be_used(folder: str, tmp_path: Path) -> None:
    models, place = ModelsFolder(tmp_path), tmp_path / folder
    for name, content in (("html", b"<!DOCTYPE html><html></html>" * 40), ("empty", b"")):
        place.mkdir(exist_ok=True)
        (place / f"{name}.safetensors").write_bytes(content)
    assert "is damaged" in str(problems_of(models, folder, "html.safetensors").whole)
    assert problems_of(models, folder, "empty.safetensors").whole is None
    assert problems_of(models, folder, "missing.safetensors").whole is None


def stored(**tensors: tuple[str, list[int], list[int]]) -> bytes:
    keys = ("dtype", "shape", "data_offsets")
    entries = {name: dict(zip(keys, each, strict=True)) for name, each in tensors.items()}
    return with_length(json.dumps(entries).encode())


def with_length(header: bytes, length: int | None = None) -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header


HOSTILE_HEADERS = {
    "length": with_length(b"{}", 2**64 - 1),
    "long": with_length(b"{}" + b" " * 2**24),
    "list": with_length(b"[]"),
    "deep": with_length(b'{"a":' + b"[" * 10**6 + b"]" * 10**6 + b"}"),
    "text": with_length(b'{"\xff":1}'),
    "overlap": stored(a=("U8", [4], [0, 4]), b=("U8", [4], [0, 4])) + bytes(4),
    "past-end": stored(a=("U8", [8], [0, 8])) + bytes(4),
    "negative": stored(a=("U8", [-4], [0, 4])) + bytes(4),
    "overflow": stored(a=("U8", [2**40, 2**40], [0, 4])) + bytes(4),
    "type": stored(a=("X" * 10**6, [4], [0, 4])) + bytes(4),
    "many": stored(**{f"t{number}": ("U8", [0], [0, 0]) for number in range(2**16 + 1)}),
}


@pytest.mark.parametrize("kind", ["checkpoints", "loras"])
@pytest.mark.parametrize("content", HOSTILE_HEADERS.values(), ids=HOSTILE_HEADERS)
def test_a_hostile_header_is_an_error_of_its_file_alone(
    content: bytes, kind: str, tmp_path: Path
) -> None:
    write(tmp_path / kind / "good.safetensors", {key: [1] for key in WHOLE})
    (tmp_path / kind / "bad.safetensors").write_bytes(content)
    models = ModelsFolder(tmp_path, timeout_s=60)
    problem = problems_of(models, kind, "bad.safetensors").whole
    assert problem is not None
    assert problem.startswith("bad.safetensors ")
    assert len(problem) < 500
    assert family_of(models, kind, "bad.safetensors") is None
    assert models.names(kind) == ("bad.safetensors", "good.safetensors")
    assert problems_of(models, kind, "good.safetensors").whole is None


T5 = "encoder.block.0.layer.0.SelfAttention.q.weight"
IN_COMFYUI = "comfy/text_encoders/t5_tokenizer/tokenizer.json"


@pytest.mark.parametrize(
    ("folder", "keys", "place"),
    [
        ("text_encoders", (T5,), "text_encoders/x.config/tokenizer.json"),
        ("clip", (T5,), "text_encoders/t5xxl.config/tokenizer.json"),
        ("clip", (T5,), f"../{IN_COMFYUI}"),
        (
            "checkpoints",
            (f"{UNET}double_blocks.0.img_attn.qkv.weight", f"text_encoders.t5xxl.transformer.{T5}"),
            "checkpoints/x.config/tokenizer.json",
        ),
    ],
)
def test_a_t5_without_tokenizer_cannot_be_used(
    folder: str, keys: tuple[str, ...], place: str, tmp_path: Path
) -> None:
    root = tmp_path / "models"
    write(root / folder / "x.safetensors", {key: [1] for key in keys})
    kind = "text_encoders" if folder == "clip" else folder
    problems = problems_of(ModelsFolder(root), kind, "x.safetensors")
    assert f"{folder}/x.config/tokenizer.json or text_encoders/t5xxl.config/tokenizer.json" in str(
        problems.of({"CLIP"})
    )
    assert problems.of({"MODEL"}) is None
    (root / place).parent.mkdir(parents=True)
    (root / place).touch()
    assert problems_of(ModelsFolder(root), kind, "x.safetensors").of({"CLIP"}) is None


def test_a_t5_may_have_its_tokenizer_in_its_file_or_in_the_configured_comfyui(
    tmp_path: Path,
) -> None:
    root = tmp_path / "models"
    write(root / "clip" / "with.safetensors", {T5: [1], "spiece_model": [8]})
    write(root / "clip" / "without.safetensors", {T5: [1]})
    (tmp_path / "other" / IN_COMFYUI).parent.mkdir(parents=True)
    (tmp_path / "other" / IN_COMFYUI).touch()
    for name, install, is_usable in (
        ("with", None, True),
        ("without", None, False),
        ("without", tmp_path / "other", True),
    ):
        models = ModelsFolder(root, comfyui_dir=install)
        found = problems_of(models, "text_encoders", f"{name}.safetensors")
        assert (found.of({"CLIP"}) is None) is is_usable


def test_a_folder_of_flux_without_the_tokenizer_of_its_t5_cannot_be_used(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "checkpoints" / "x"
    (folder / "text_encoder_2").mkdir(parents=True)
    (folder / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')
    models = ModelsFolder(tmp_path / "models", ttl_s=0)
    problem = problems_of(models, "checkpoints", "x").of({"CLIP"})
    assert "at x/tokenizer_2/tokenizer.json" in str(problem)
    (folder / "tokenizer_2").mkdir()
    (folder / "tokenizer_2" / "tokenizer.json").touch()
    assert problems_of(models, "checkpoints", "x").of({"CLIP"}) is None


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
