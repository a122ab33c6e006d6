"""Runs each stage of training with tiny settings, and the engine with the resulting checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKL
from torch import Tensor

from engine.diffusion.loading.checkpoints import Checkpoint, load_checkpoint
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.text.text_encoders import END, START
from engine.graph.models_folder import ModelsFolder
from training.shapes import vocabulary
from training.shapes.export import export
from training.shapes.text_encoder import train_text_encoder
from training.shapes.unet import Denoiser, train_unet
from training.shapes.vae import SCALING_FACTOR, train_vae

STEPS = 2
SCENES = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("train")


@pytest.fixture(scope="module")
def vae(folder: Path) -> AutoencoderKL:
    return train_vae(folder, steps=STEPS, seed=1)


@pytest.fixture(scope="module")
def denoiser(folder: Path, vae: AutoencoderKL) -> Denoiser:
    encoder = train_text_encoder(folder, steps=STEPS, seed=1)
    return train_unet(folder, vae, encoder, steps=STEPS, scenes=SCENES, seed=1)


@pytest.fixture(scope="module")
def exported(
    vae: AutoencoderKL, denoiser: Denoiser, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("models") / "checkpoints" / "shapes.safetensors"
    export(vae, denoiser, out)
    return out


def test_the_engine_loads_what_was_exported(
    exported: Path, vae: AutoencoderKL, denoiser: Denoiser
) -> None:
    checkpoint = _loaded(exported)
    assert checkpoint.model.latent_scale == SCALING_FACTOR
    pairs = ((vae, checkpoint.vae.autoencoder), (denoiser.unet, checkpoint.model.unet))
    for trained, loaded in pairs:
        assert _same(_halved(trained.state_dict()), _halved(loaded.state_dict()))


def test_the_exported_encoder_reads_clip_tokens_as_the_trained_one_its_rows(
    exported: Path, denoiser: Denoiser
) -> None:
    tokens = vocabulary.tokens_of(["a tiny star, yellow, top left, over green", ""])
    assert tokens[0, 0] == START
    assert (tokens[1, 1:] == END).all()
    (loaded,) = _loaded(exported).clip.encoders
    with torch.no_grad():
        own = denoiser.text.eval()(vocabulary.trained_index_of_token()[tokens]).last_hidden_state
        theirs = loaded.text_model(tokens).last_hidden_state
    assert torch.allclose(own, theirs, atol=0.02)


def _loaded(path: Path) -> Checkpoint:
    store = ModelStore(ModelsFolder(path.parent), torch.device("cpu"), 2**30)
    return load_checkpoint(store, path.name)


def _halved(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.half() for name, tensor in state.items()}


def _same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(tensor, other[name]) for name, tensor in one.items()
    )
