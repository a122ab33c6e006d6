"""Where the WebUI's encoding of texts goes beyond its syntax, with tiny checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine.diffusion.conditioning.condition import Conditioning
from engine.diffusion.loading.checkpoints import load_checkpoint
from engine.diffusion.loading.store import ModelStore
from engine.graph.models_folder import ModelsFolder
from tests.support.engine.bodies import outputs_of

ALL = {"pads_texts": True, "makes_plain": True, "zeroes_empty_negative": True}


@pytest.fixture
def store(tmp_path: Path, families_root: Path) -> ModelStore:
    (tmp_path / "checkpoints").symlink_to(families_root / "checkpoints")
    return ModelStore(ModelsFolder(tmp_path, ttl_s=0), torch.device("cpu"), 2**30)


def encoded(
    store: ModelStore, text: str, negative: str = "", *, family: str = "sdxl", **options: Any
) -> tuple[Conditioning, Conditioning]:
    loaded = load_checkpoint(store, f"{family}.safetensors")
    schedule = {"steps": 10, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
    texts = {"text": text, "negative_text": negative, "steps_before": 0}
    found: tuple[Conditioning, Conditioning] = outputs_of(
        "WebUITextEncode", clip=loaded.clip, model=loaded.model, **texts, **schedule, **options
    )
    return found


def test_an_empty_negative_text_of_sdxl_is_zeros(store: ModelStore) -> None:
    _, (empty,) = encoded(store, "a dog", **ALL)
    assert not empty.tokens.any()
    assert empty.pooled is not None
    assert not empty.pooled.any()
    for _, (found,) in (
        encoded(store, "a dog", "x", **ALL),
        encoded(store, "a dog"),
        encoded(store, "a dog", family="sd2", **ALL),
    ):
        assert found.tokens.any()


def test_texts_of_a_schedule_are_as_long_as_the_longest(store: ModelStore) -> None:
    text = "[a dog:" + "a cat, " * 40 + ":0.5] AND a ship BREAK a sea BREAK a sky"
    (first, second, third, _), _ = encoded(store, text, **ALL)
    assert [each.tokens.shape[1] for each in (first, second, third)] == [3 * 77] * 3
    assert torch.equal(
        first.tokens[:, 2 * 77 :], first.tokens[:, 2 * 77 - 1 :][:, :1].expand(-1, 77, -1)
    )
    own, _ = encoded(store, text)
    assert [each.tokens.shape[1] for each in own[:3]] == [77, 2 * 77, 3 * 77]


def test_an_embedding_that_does_not_fit_is_a_word(store: ModelStore, tmp_path: Path) -> None:
    (tmp_path / "embeddings").mkdir()
    save_file({"emb_params": torch.ones(2, 12345)}, tmp_path / "embeddings" / "dog.safetensors")
    (found,), _ = encoded(store, "a dog", "x", **ALL)
    (tmp_path / "embeddings" / "dog.safetensors").unlink()
    (word,), _ = encoded(store, "a dog", "x", **ALL)
    assert torch.equal(found.tokens, word.tokens)
