"""Each stage of training the flow model with tiny settings, and the engine with the result."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL
from torch import Tensor

from engine.diffusion.loading.checkpoints import Checkpoint, load_checkpoint
from engine.diffusion.loading.store import ModelStore
from engine.families.table import Z_IMAGE
from engine.graph.models_folder import ModelsFolder
from training.flow.export import export
from training.flow.text_encoder import encode, train_text_encoder
from training.flow.tokens import UNKNOWN, captions_of, ids_of, tokenizer
from training.flow.transformer import Denoiser, train_transformer
from training.flow.vae import train_vae
from training.shapes.scenes import draw_scenes

STEPS = 2
SCENES = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("train")


@pytest.fixture(scope="module")
def vae(folder: Path) -> AutoencoderKL:
    return train_vae(folder, steps=STEPS, seed=1, cpu_budget_s=600)


@pytest.fixture(scope="module")
def denoiser(folder: Path, vae: AutoencoderKL) -> Denoiser:
    encoder = train_text_encoder(folder, steps=STEPS, seed=1, cpu_budget_s=600)
    return train_transformer(
        folder, vae, encoder, steps=STEPS, scenes=SCENES, seed=1, cpu_budget_s=600
    )


@pytest.fixture(scope="module")
def exported(
    vae: AutoencoderKL, denoiser: Denoiser, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("models") / "checkpoints" / "z-shapes.safetensors"
    export(vae, denoiser, out)
    return out


def test_captions_are_made_of_known_words_and_a_few_unknown_ones() -> None:
    drawn = draw_scenes(np.random.default_rng(3), 500)
    rows = captions_of(drawn, Random("captions"))
    unknown = sum(UNKNOWN in row for row in rows) / len(rows)
    assert 0.1 < unknown < 0.2
    (row,) = ids_of(["a tiny STAR, yellow"])
    (turn,) = ids_of([""])
    assert UNKNOWN not in row
    assert len(row) == len(turn) + 5
    assert max(map(max, rows)) < tokenizer().get_vocab_size()


def test_stages_keep_a_journal_of_the_time_that_they_took(denoiser: Denoiser, folder: Path) -> None:
    for stage in ("vae", "text_encoder", "transformer"):
        last = json.loads((folder / f"{stage}.jsonl").read_text().splitlines()[-1])
        assert last["step"] == STEPS
        assert last["cpu_s"] > 0


def test_the_engine_loads_what_was_exported_as_z_image(
    exported: Path, vae: AutoencoderKL, denoiser: Denoiser
) -> None:
    checkpoint = _loaded(exported)
    assert checkpoint.model.family.traits is Z_IMAGE
    pairs = (
        (vae, checkpoint.vae.autoencoder),
        (denoiser.transformer, checkpoint.model.unet),
    )
    for trained, loaded in pairs:
        assert _same(_halved(trained.state_dict()), _halved(loaded.state_dict()))


def test_the_engine_encodes_texts_as_the_training_does(exported: Path, denoiser: Denoiser) -> None:
    texts: Any = _loaded(exported).clip
    rows = ids_of(["a tiny star, yellow, top left, over green", ""])
    with torch.no_grad():
        own = encode(denoiser.text.eval(), rows)
        theirs = texts.encoder.encoded([tuple(row) for row in rows])
    for one, other in zip(own, theirs, strict=True):
        assert torch.allclose(one, other, atol=0.02)


def _loaded(path: Path) -> Checkpoint:
    store = ModelStore(ModelsFolder(path.parents[1]), torch.device("cpu"), 2**30)
    return load_checkpoint(store, path.name)


def _halved(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.half() for name, tensor in state.items()}


def _same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(tensor, other[name]) for name, tensor in one.items()
    )
