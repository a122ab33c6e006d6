"""Checkpoints: files and folders, what is wrong with others, and the pictures of diffusers."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import UNet2DConditionModel
from diffusers.loaders.single_file_utils import (
    convert_ldm_unet_checkpoint,
    convert_open_clip_checkpoint,
)
from safetensors.torch import load_file, save_file

from engine.diffusion.conditioning.condition import Condition
from engine.diffusion.loading import layout
from engine.diffusion.loading.checkpoint_info import CONFIGS, inspect
from engine.diffusion.loading.checkpoints import Checkpoint, load_checkpoint, load_vae
from engine.diffusion.loading.networks import unet_dtype
from engine.diffusion.text.text_encoders import CLIP_G, made_on_meta
from engine.errors import CheckpointUnavailable, EngineError
from engine.families.family import Family
from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from engine.options import DeviceOptions, UnetOptions
from tests.support.engine import judges
from tests.support.engine.engines import running
from tests.support.engine.latents import all_latents_and_images, farthest, psnr_db_of
from tests.support.engine.stores import store_of
from tests.support.engine.workflows import TINY, RunAll, node, text_to_image, with_input
from training.tiny_families import write_family


@pytest.fixture
def folder(tmp_path: Path, tiny_root: Path) -> Path:
    """A copy of the checkpoints folder, which tests may damage."""
    return Path(shutil.copytree(tiny_root / "checkpoints", tmp_path / "checkpoints"))


def load(folder: Path, name: str = TINY) -> Checkpoint:
    return load_checkpoint(store_of(folder.parent), name)


def test_text_encoder_holds_half_precision_values_in_single_precision(folder: Path) -> None:
    checkpoint = load(folder)
    weight = checkpoint.clip.encoders[0].text_model.final_layer_norm.weight
    assert weight.dtype == torch.float32
    assert torch.equal(weight, weight.half().float())
    assert checkpoint.model.latent_scale == 0.18215


def test_a_checkpoint_is_loaded_once_and_anew_when_its_file_changed(folder: Path) -> None:
    store = store_of(folder.parent)
    first = load_checkpoint(store, TINY)
    assert load_checkpoint(store, TINY).model.unet is first.model.unet
    tensors = load_file(folder / TINY)
    save_file(tensors, folder / TINY, metadata={"changed": "yes"})
    assert load_checkpoint(store, TINY).model.unet is not first.model.unet


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("model.diffusion_model.double_blocks.0.x", "Flux"),
        ("model.diffusion_model.joint_blocks.0.x", "Stable Diffusion 3"),
        ("control_model.x", "ControlNet.*controlnet/"),
        ("lora_unet_x", "LoRA.*loras/"),
        ("unet.x.lora_A.weight", "LoRA.*loras/"),
        ("emb_params", "embedding"),
        ("first_stage_model.x", "not a Stable Diffusion checkpoint.*model.diffusion_model"),
    ],
)
def test_a_foreign_file_is_refused_by_its_kind(key: str, message: str, folder: Path) -> None:
    save_file({key: torch.zeros(1)}, folder / TINY)
    with pytest.raises(CheckpointUnavailable, match=message):
        load(folder)


@pytest.mark.parametrize(("channels", "kind"), [(5, "depth"), (7, "upscaling"), (11, "11 input")])
def test_a_model_of_other_inputs_is_refused(channels: int, kind: str, folder: Path) -> None:
    _widen(folder / TINY, channels)
    with pytest.raises(CheckpointUnavailable, match=kind):
        load(folder)


@pytest.mark.parametrize("channels", [8, 9])
def test_a_model_with_a_picture_as_input_loads(channels: int, folder: Path) -> None:
    _widen(folder / TINY, channels)
    assert load(folder).model.unet.conv_in.weight.shape[1] == channels


def _widen(path: Path, channels: int) -> None:
    """Give the UNet more input channels, whose weights are 0."""
    tensors = load_file(path)
    key = "model.diffusion_model.input_blocks.0.0.weight"
    wide = torch.zeros(len(tensors[key]), channels, 3, 3)
    wide[:, :4] = tensors[key]
    save_file(tensors | {key: wide}, path)


@pytest.mark.parametrize("mark", ["key", "configuration"])
def test_a_model_of_zero_terminal_snr_has_its_levels(mark: str, folder: Path) -> None:
    usual = load(folder).model.levels
    path = folder / TINY
    if mark == "key":
        save_file(load_file(path) | {"ztsnr": torch.zeros(0)}, path)
    else:
        scheduler = path.with_suffix(".config") / "scheduler" / "scheduler_config.json"
        given = json.loads(scheduler.read_text()) | {"rescale_betas_zero_snr": True}
        scheduler.write_text(json.dumps(given))
    levels = load(folder).model.levels
    assert float(levels.sigma_max) > 100 * float(usual.sigma_max)
    assert float(levels.sigma_min) == pytest.approx(float(usual.sigma_min), rel=1e-3)


@pytest.mark.parametrize("part", ["unet", "vae", "text_encoder"])
@pytest.mark.parametrize("change", [{"block_out_channels": 3, "hidden_size": "x"}, None])
def test_a_configuration_that_makes_no_model_says_so(
    part: str, change: dict[str, Any] | None, folder: Path
) -> None:
    path = folder / "darkroom-tiny.config" / part / "config.json"
    given = json.loads(path.read_text())
    path.write_text(json.dumps(given | change) if change else "{")
    said = "no model can be built" if change else "cannot be"
    with pytest.raises(CheckpointUnavailable, match=said):
        use_all_parts(load(folder))


def use_all_parts(checkpoint: Checkpoint) -> None:
    assert checkpoint.vae.autoencoder
    assert checkpoint.clip.networks


def write_in_parts(checkpoint: Checkpoint, unet: Any, out: Path) -> None:
    """Write a checkpoint as a folder of diffusers, with this UNet."""
    unet.save_pretrained(out / "unet")
    checkpoint.vae.autoencoder.save_pretrained(out / "vae")
    checkpoint.clip.encoders[0].text_model.save_pretrained(out / "text_encoder")
    (out / "model_index.json").write_text(json.dumps({"_class_name": "StableDiffusionPipeline"}))


def test_a_diffusers_folder_gives_the_same_models(folder: Path) -> None:
    single = load(folder)
    write_in_parts(single, single.model.unet, folder / "in-parts")
    parts = load(folder, "in-parts")
    for one, other in (
        (single.model.unet, parts.model.unet),
        (single.vae.autoencoder, parts.vae.autoencoder),
        (single.clip.encoders[0], parts.clip.encoders[0]),
    ):
        state = other.state_dict()
        assert all(torch.equal(tensor, state[name]) for name, tensor in one.state_dict().items())


def test_a_vae_is_read_from_either_layout(folder: Path) -> None:
    store, vaes = store_of(folder.parent), folder.parent / "vae"
    own = load_checkpoint(store, TINY).vae.autoencoder
    own.save_pretrained(vaes / "diffusers")
    part = {k: t for k, t in load_file(folder / TINY).items() if k.startswith("first_stage_model.")}
    bare = {k.removeprefix("first_stage_model."): t for k, t in part.items()}
    for name, tensors in (("part", part), ("bare", bare)):
        save_file(tensors, vaes / f"{name}.safetensors")
        shutil.copytree(vaes / "diffusers", vaes / f"{name}.config")
    for name in ("part", "bare", "diffusers/diffusion_pytorch_model"):
        found = load_vae(store, f"{name}.safetensors").autoencoder.state_dict()
        assert all(torch.equal(tensor, found[key]) for key, tensor in own.state_dict().items())
    save_file({"x": torch.zeros(1)}, vaes / "part.safetensors")
    with pytest.raises(CheckpointUnavailable, match="not a VAE"):
        load_vae(store, "part.safetensors")


@pytest.mark.parametrize("asked", ["x.ckpt", "x"])
@pytest.mark.parametrize("at", ["checkpoints", "."])
def test_a_pickled_file_is_refused(asked: str, at: str, folder: Path) -> None:
    place = folder.parent / at
    (place / "x.ckpt").touch()
    assert store_of(folder.parent).models.names("checkpoints") == (TINY,)
    with pytest.raises(CheckpointUnavailable, match="any code"):
        load(folder, asked)


@pytest.mark.parametrize(("least", "sigma_min"), [(0.01, 0.01), (None, 0.002)])
def test_cosxl_has_the_noise_levels_of_its_file(
    least: float | None, sigma_min: float, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoints" / "cosxl.safetensors"
    write_family(Family.SDXL, path, tmp_path / "rest")
    assert not load(path.parent, path.name).model.unet.scales_pictures
    sigmas = {"sigma_max": 80.0} | ({"sigma_min": least} if least else {})
    marks = {f"edm_vpred.{name}": torch.tensor(each) for name, each in sigmas.items()}
    save_file(load_file(path) | marks, path)
    model = load(path.parent, path.name).model
    assert model.prediction == "v_prediction"
    assert float(model.levels.sigma_max) == pytest.approx(80.0)
    assert float(model.levels.sigma_min) == pytest.approx(sigma_min)
    assert model.unet.scales_pictures
    save_file(load_file(path) | {"edm_vpred.sigma_max": torch.tensor(-1.0)}, path)
    with pytest.raises(CheckpointUnavailable, match="unusable noise levels"):
        load(path.parent, path.name)


FAMILIES = [Family.SD2, Family.SDXL, Family.SDXL_REFINER]
LEAST_DB = 90
"""The difference is float32 rounding; a wrong size or token causes a far larger one."""


@pytest.fixture
def copied(families_root: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(families_root, tmp_path / "models")) / "checkpoints"


def drawing(checkpoint: str, **encoders: Any) -> dict[str, Any]:
    """The default workflow with the settings of `judges`; keywords replace nodes of the texts."""
    prompt = text_to_image(seed=judges.SEED, steps=judges.STEPS, cfg=judges.CFG)
    prompt["4"]["inputs"]["ckpt_name"] = checkpoint
    prompt["6"]["inputs"]["text"] = judges.PROMPT
    prompt["7"]["inputs"]["text"] = judges.NEGATIVE
    return prompt | encoders


# diffusers' scheduler calls NumPy in an outdated way.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("family", FAMILIES)
def test_file_and_folder_give_diffusers_latents(family: Family, families_root: Path) -> None:
    catalogue = Catalogue(ModelsFolder(families_root))
    prompts = [drawing(f"{family}.safetensors"), drawing(f"{family}-folder")]
    (single, pictures), (folder, others) = all_latents_and_images(prompts, catalogue)
    assert np.array_equal(single, folder)
    assert np.array_equal(pictures, others)
    expected = judges.latents_of(family, families_root / "checkpoints" / f"{family}-folder")
    assert psnr_db_of(single, expected.numpy()) >= LEAST_DB


def test_size_conditioning_texts_and_scores_are_those_of_the_nodes(families_root: Path) -> None:
    """Without such a node they are the size of the picture, and a fixed score for each prompt."""
    sizes = {"width": 64, "height": 64, "crop_w": 0, "crop_h": 0}
    target = {"target_width": 64, "target_height": 64}
    base, refiner = "sdxl.safetensors", "sdxl_refiner.safetensors"

    def xl(text_g: str, text_l: str, **others: int) -> dict[str, Any]:
        inputs = sizes | target | others
        return node("CLIPTextEncodeSDXL", clip=["4", 1], text_g=text_g, text_l=text_l, **inputs)

    def refined(text: str, ascore: float) -> dict[str, Any]:
        inputs = {"width": 64, "height": 64, "ascore": ascore}
        return node("CLIPTextEncodeSDXLRefiner", clip=["4", 1], text=text, **inputs)

    text, negative = judges.PROMPT, judges.NEGATIVE
    both = {"6": xl(text, text), "7": xl(negative, negative)}
    scored = {"6": refined(text, 6.0), "7": refined(negative, 2.5)}
    prompts = [
        drawing(base),
        drawing(base, **both),
        drawing(base, **both | {"6": xl(text, "")}),
        drawing(base, **both | {"6": xl(text, text, crop_h=32)}),
        drawing(base, **both | {"6": xl(text, text, target_width=128)}),
        drawing(refiner),
        drawing(refiner, **scored),
        drawing(refiner, **scored | {"7": refined(negative, 6.0)}),
    ]
    runs = all_latents_and_images(prompts, Catalogue(ModelsFolder(families_root)))
    plain, same, *others, scored_plain, scored_same, scored_other = [run[0] for run in runs]
    assert psnr_db_of(same, plain) >= LEAST_DB
    assert psnr_db_of(scored_same, scored_plain) >= LEAST_DB
    assert [psnr_db_of(other, plain) < 60 for other in others] == [True] * 3
    assert psnr_db_of(scored_other, scored_plain) < 60


def test_a_text_of_another_model_is_refused(families_root: Path) -> None:
    store = store_of(families_root)
    model = load_checkpoint(store, "sdxl.safetensors").model
    latent = torch.zeros(1, 4, 8, 8)
    for foreign in (Condition(torch.zeros(1, 77, 16)), Condition(torch.zeros(1, 77, 40))):
        with pytest.raises(EngineError, match="encoded for another model"):
            model.with_size_conditioning((foreign,), latent, negative=False, seed=0)


@pytest.mark.parametrize("name", ["sd15", "sd20", "sd21", "sdxl_base", "sdxl_refiner"])
def test_names_of_the_full_models_are_those_of_diffusers_converter(name: str) -> None:
    config = json.loads((CONFIGS / name / "unet" / "config.json").read_text())
    with torch.device("meta"):
        unet: Any = UNet2DConditionModel.from_config(config)
    key_map = layout.unet(unet.state_dict(), config, "model.diffusion_model.")
    keys = {stored.key: stored.key for stored in key_map.values()}
    theirs = convert_ldm_unet_checkpoint(keys, config)
    assert {ours: stored.key for ours, stored in key_map.items()} == theirs


def test_open_clip_is_read_as_diffusers_converter_does() -> None:
    config = json.loads((CONFIGS / "sdxl_base" / "text_encoder_2" / "config.json").read_text())
    small = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2}
    encoder = made_on_meta({**config, **small, "num_attention_heads": 2, "vocab_size": 9}, CLIP_G)
    key_map = layout.open_clip(encoder.state_dict(), "x.")
    shapes = {n: t.shape for n, t in encoder.state_dict().items()}
    shapes["text_projection.weight"] = torch.Size([1280, 8])
    checkpoint = {
        stored.key: torch.randn(shapes[name][0] * 3, *shapes[name][1:])
        if stored.third is not None
        else torch.randn(*shapes[name][:: -1 if stored.transposed else 1])
        for name, stored in key_map.items()
    }
    # The converter takes the size of a third from the projection, so that has its full width.
    checkpoint["x.text_projection"] = torch.randn(8, 1280)
    theirs = convert_open_clip_checkpoint(encoder, checkpoint, prefix="x.")
    for name, stored in key_map.items():
        tensor = checkpoint[stored.key]
        if stored.third is not None:
            tensor = tensor.chunk(3)[stored.third]
        assert torch.equal(tensor.T if stored.transposed else tensor, theirs[name]), name


def test_v_prediction_is_recognised_by_the_configuration_then_by_a_key(copied: Path) -> None:
    single = copied / "sdxl.safetensors"
    assert inspect(single).prediction == "epsilon"
    tensors = load_file(single)
    save_file({**tensors, "v_pred": torch.zeros(0)}, single)
    assert inspect(single).prediction == "epsilon"  # `sdxl.config/` says so
    shutil.rmtree(single.with_suffix(".config"))
    assert inspect(single).prediction == "v_prediction"


@pytest.mark.parametrize(("deviation", "prediction"), [(0.01, "epsilon"), (0.2, "v_prediction")])
def test_a_stable_diffusion_2_without_configuration_is_recognised_by_a_deviation(
    deviation: float, prediction: str, copied: Path
) -> None:
    single = copied / "sd2.safetensors"
    shutil.rmtree(single.with_suffix(".config"))
    bias = "model.diffusion_model.output_blocks.11.1.transformer_blocks.0.norm1.bias"
    tensors = load_file(single) | {bias: deviation * torch.tensor([1.0, -1.0] * 160)}
    save_file(tensors, single)
    assert inspect(single).prediction == prediction


def test_sizes_that_do_not_fit_are_named_with_file_key_and_both_shapes(copied: Path) -> None:
    shutil.rmtree(copied / "sdxl.config")
    store = store_of(copied.parent)
    with pytest.raises(CheckpointUnavailable) as caught:
        load_checkpoint(store, "sdxl.safetensors")
    message = str(caught.value)
    for part in ("sdxl.safetensors", "model.diffusion_model.", "16x4x3x3", "320x4x3x3"):
        assert part in message


@pytest.mark.parametrize("missing", ["vae", "text_encoder_2"])
def test_a_folder_that_lacks_a_component_says_which(missing: str, copied: Path) -> None:
    shutil.rmtree(copied / "sdxl-folder" / missing)
    with pytest.raises(CheckpointUnavailable, match=missing):
        inspect(copied / "sdxl-folder")


def test_a_folder_of_pickles_is_refused(copied: Path) -> None:
    weights = copied / "sdxl-folder" / "unet" / "diffusion_pytorch_model.safetensors"
    weights.rename(weights.with_suffix(".bin"))
    with pytest.raises(CheckpointUnavailable, match="pickled"):
        inspect(copied / "sdxl-folder")


CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("precision", "on_cpu", "on_gpu"),
    [
        ("auto", torch.float32, torch.float16),
        ("float32", torch.float32, torch.float32),
        ("float16", torch.float16, torch.float16),
        ("bfloat16", torch.bfloat16, torch.bfloat16),
    ],
)
def test_precision(precision: Any, on_cpu: torch.dtype, on_gpu: torch.dtype) -> None:
    options = UnetOptions(precision=precision)
    assert (unet_dtype(options, CPU), unet_dtype(options, GPU)) == (on_cpu, on_gpu)


def test_a_unet_is_kept_as_the_options_say_and_the_rest_in_float32(tiny_root: Path) -> None:
    options = UnetOptions("bfloat16", channels_last=True)
    loaded = load_checkpoint(store_of(tiny_root, unets=options), TINY)
    weight = loaded.model.unet.conv_in.weight
    assert weight.dtype is torch.bfloat16
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert {each.dtype for each in loaded.vae.autoencoder.parameters()} == {torch.float32}
    assert {each.dtype for each in loaded.clip.encoders[0].parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("options", "levels"),
    [
        (UnetOptions(), 0),
        (UnetOptions(channels_last=True), 1),
        (UnetOptions("bfloat16"), 24),
    ],
    ids=str,
)
def test_pictures_hardly_depend_on_the_options(
    tiny_root: Path, run_all: RunAll, options: UnetOptions, levels: int
) -> None:
    (usual,) = run_all([text_to_image()])
    with running(tiny_root, options=DeviceOptions(**asdict(options))) as engine:
        (found,) = engine.pictures(text_to_image())
    assert farthest(usual, found) <= levels


def test_a_compiled_unet_makes_the_same_picture(folder: Path) -> None:
    """It is traced as for any compiler, and run without compiling. To trace attention takes most of
    the time, so only its middle has any.
    """
    loaded = load(folder)
    blocks = {"down_block_types": ["DownBlock2D"] * 2, "up_block_types": ["UpBlock2D"] * 2}
    torch.manual_seed(1)
    unet = UNet2DConditionModel.from_config(
        {**loaded.model.unet.config, **blocks, "layers_per_block": 1}
    )
    write_in_parts(loaded, unet, folder / "small")
    prompt = with_input(text_to_image(), "4", ckpt_name="small")
    pictures: list[Any] = []
    for options in (DeviceOptions(), DeviceOptions(compiler="eager")):
        with running(folder.parent, options=options) as engine:
            pictures += engine.pictures(prompt)
    assert farthest(*pictures) <= 1
