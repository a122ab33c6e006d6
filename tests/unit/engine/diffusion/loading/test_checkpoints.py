from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.diffusion.loading.checkpoints import Checkpoint, load_checkpoint, load_vae
from engine.diffusion.loading.store import ModelStore
from engine.errors import CheckpointUnavailable
from engine.graph.models_folder import ModelsFolder
from tests.support.engine.workflows import TINY

MakeStore = Callable[..., "Checkpoints"]


class Checkpoints(ModelStore):
    def load(self, name: str) -> Checkpoint:
        return load_checkpoint(self, name)


@pytest.fixture
def folder(tmp_path: Path, tiny_root: Path) -> Path:
    """A copy of the checkpoints folder, which tests may damage."""
    return Path(shutil.copytree(tiny_root / "checkpoints", tmp_path / "checkpoints"))


@pytest.fixture
def store(tmp_path: Path) -> MakeStore:
    def make(cache_bytes: int = 2**30) -> Checkpoints:
        return Checkpoints(ModelsFolder(tmp_path), torch.device("cpu"), cache_bytes)

    return make


def test_text_encoder_holds_half_precision_values_in_single_precision(
    folder: Path, store: MakeStore
) -> None:
    checkpoint = store().load(TINY)
    weight = checkpoint.clip.encoders[0].text_model.final_layer_norm.weight
    assert weight.dtype == torch.float32
    assert torch.equal(weight, weight.half().float())
    assert checkpoint.model.latent_scale == 0.18215


def test_a_checkpoint_is_loaded_once_and_anew_when_its_file_changed(
    folder: Path, store: MakeStore
) -> None:
    checkpoints = store()
    first = checkpoints.load(TINY)
    assert checkpoints.load(TINY).model.unet is first.model.unet
    tensors = load_file(folder / TINY)
    save_file(tensors, folder / TINY, metadata={"changed": "yes"})
    assert checkpoints.load(TINY).model.unet is not first.model.unet


def test_least_recently_used_goes_first_when_memory_is_short(
    folder: Path, store: MakeStore
) -> None:
    for name in ("b", "c"):
        shutil.copy(folder / TINY, folder / f"{name}.safetensors")
        shutil.copytree(folder / "darkroom-tiny.config", folder / f"{name}.config")
    one = store()
    one.load(TINY)
    size = one.size_bytes
    checkpoints = store(cache_bytes=2 * size)
    for name in (TINY, "b.safetensors", TINY, "c.safetensors"):
        checkpoints.load(name)
    assert checkpoints.labels == (TINY, "c.safetensors")


def test_a_truncated_file_is_said_to_be_damaged(folder: Path, store: MakeStore) -> None:
    whole = (folder / TINY).read_bytes()
    for size in (0, 4, 1000, len(whole) // 2):
        (folder / TINY).write_bytes(whole[:size])
        with pytest.raises(CheckpointUnavailable, match="damaged"):
            store().load(TINY)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("model.diffusion_model.double_blocks.0.x", "Flux"),
        ("model.diffusion_model.joint_blocks.0.x", "Stable Diffusion 3"),
        ("control_model.x", "ControlNet.*controlnet/"),
        ("lora_unet_x", "LoRA.*loras/"),
        ("unet.x.lora_A.weight", "LoRA.*loras/"),
        ("emb_params", "embedding"),
        ("first_stage_model.x", "no Stable Diffusion checkpoint.*model.diffusion_model"),
    ],
)
def test_a_foreign_file_is_refused_by_its_kind(
    key: str, message: str, folder: Path, store: MakeStore
) -> None:
    save_file({key: torch.zeros(1)}, folder / TINY)
    with pytest.raises(CheckpointUnavailable, match=message):
        store().load(TINY)


@pytest.mark.parametrize(("channels", "kind"), [(5, "depth"), (8, "instruction"), (11, "11 input")])
def test_a_model_with_other_inputs_is_refused_by_its_channels(
    channels: int, kind: str, folder: Path, store: MakeStore
) -> None:
    _widen(folder / TINY, channels)
    with pytest.raises(CheckpointUnavailable, match=kind):
        store().load(TINY)


def test_an_inpainting_model_loads_and_says_so(folder: Path, store: MakeStore) -> None:
    assert not store().load(TINY).model.inpaints
    _widen(folder / TINY, 9)
    loaded = store().load(TINY)
    assert loaded.model.inpaints
    assert loaded.model.unet.conv_in.weight.shape[1] == 9


def _widen(path: Path, channels: int) -> None:
    """Give the UNet more input channels, whose weights are 0."""
    tensors = load_file(path)
    key = "model.diffusion_model.input_blocks.0.0.weight"
    wide = torch.zeros(len(tensors[key]), channels, 3, 3)
    wide[:, :4] = tensors[key]
    save_file(tensors | {key: wide}, path)


@pytest.mark.parametrize("mark", ["key", "configuration"])
def test_a_model_of_zero_terminal_snr_has_its_levels(
    mark: str, folder: Path, store: MakeStore
) -> None:
    usual = store().load(TINY).model.levels
    path = folder / TINY
    if mark == "key":
        save_file(load_file(path) | {"ztsnr": torch.zeros(0)}, path)
    else:
        scheduler = path.with_suffix(".config") / "scheduler" / "scheduler_config.json"
        given = json.loads(scheduler.read_text()) | {"rescale_betas_zero_snr": True}
        scheduler.write_text(json.dumps(given))
    levels = store().load(TINY).model.levels
    assert float(levels.sigma_max) > 100 * float(usual.sigma_max)
    assert float(levels.sigma_min) == pytest.approx(float(usual.sigma_min), rel=1e-3)


def test_a_file_that_lacks_a_weight_names_it(folder: Path, store: MakeStore) -> None:
    tensors = load_file(folder / TINY)
    key = "model.diffusion_model.out.2.bias"
    del tensors[key]
    save_file(tensors, folder / TINY)
    with pytest.raises(CheckpointUnavailable, match=f"{TINY} has no {key}"):
        store().load(TINY)


@pytest.mark.parametrize("part", ["unet", "vae", "text_encoder"])
@pytest.mark.parametrize("change", [{"block_out_channels": 3, "hidden_size": "x"}, None])
def test_a_configuration_that_makes_no_model_says_so(
    part: str, change: dict[str, Any] | None, folder: Path, store: MakeStore
) -> None:
    path = folder / "darkroom-tiny.config" / part / "config.json"
    given = json.loads(path.read_text())
    path.write_text(json.dumps(given | change) if change else "{")
    with pytest.raises(CheckpointUnavailable, match="makes no model" if change else "cannot be"):
        store().load(TINY)


def test_other_sizes_than_the_configuration_says_are_unavailable(
    folder: Path, store: MakeStore
) -> None:
    shutil.rmtree(folder / "darkroom-tiny.config")
    with pytest.raises(CheckpointUnavailable, match=r"is .*x.* and should be .*x"):
        store().load(TINY)


def test_a_diffusers_folder_gives_the_same_models(
    folder: Path, store: MakeStore, tmp_path: Path
) -> None:
    checkpoints = store()
    single = checkpoints.load(TINY)
    out = folder / "in-parts"
    single.model.unet.save_pretrained(out / "unet")
    single.vae.autoencoder.save_pretrained(out / "vae")
    single.clip.encoders[0].text_model.save_pretrained(out / "text_encoder")
    (out / "model_index.json").write_text(json.dumps({"_class_name": "StableDiffusionPipeline"}))
    parts = store().load("in-parts")
    for one, other in (
        (single.model.unet, parts.model.unet),
        (single.vae.autoencoder, parts.vae.autoencoder),
        (single.clip.encoders[0], parts.clip.encoders[0]),
    ):
        state = other.state_dict()
        assert all(torch.equal(tensor, state[name]) for name, tensor in one.state_dict().items())


def test_a_vae_is_read_from_either_layout(folder: Path, store: MakeStore, tmp_path: Path) -> None:
    checkpoints = store()
    own = checkpoints.load(TINY).vae.autoencoder
    vaes = tmp_path / "vae"
    own.save_pretrained(vaes / "diffusers")
    part = {k: t for k, t in load_file(folder / TINY).items() if k.startswith("first_stage_model.")}
    bare = {k.removeprefix("first_stage_model."): t for k, t in part.items()}
    for name, tensors in (("part", part), ("bare", bare)):
        save_file(tensors, vaes / f"{name}.safetensors")
        shutil.copytree(vaes / "diffusers", vaes / f"{name}.config")
    names = ["part", "bare", "diffusers/diffusion_pytorch_model"]
    for name in names:
        found = load_vae(checkpoints, f"{name}.safetensors").autoencoder.state_dict()
        assert all(torch.equal(tensor, found[key]) for key, tensor in own.state_dict().items())
    save_file({"x": torch.zeros(1)}, vaes / "part.safetensors")
    with pytest.raises(CheckpointUnavailable, match="no VAE"):
        load_vae(checkpoints, "part.safetensors")


@pytest.mark.parametrize("asked", ["x.ckpt", "x"])
@pytest.mark.parametrize("at", ["checkpoints", "."])
def test_a_pickled_file_is_refused(asked: str, at: str, folder: Path, store: MakeStore) -> None:
    place = folder.parent / at
    (place / "x.ckpt").touch()
    assert store().models.names("checkpoints") == (TINY,)
    with pytest.raises(CheckpointUnavailable, match="any code"):
        store().load(asked)
