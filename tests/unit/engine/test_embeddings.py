"""Textual inversion: learned words in prompts."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.catalogue import Catalogue
from engine.diffusion.embeddings import find_embedding
from engine.diffusion.store import ModelStore
from engine.diffusion.text import Chunk, chunks_of, load_tokenizer
from engine.diffusion.text_encoders import END, LearnedToken, Token
from engine.errors import CheckpointUnavailable
from engine.models_folder import ModelsFolder
from tests.unit.engine.latents import all_latents_and_images
from tests.unit.engine.workflows import text_to_image


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "embeddings" / "sub").mkdir(parents=True)
    return tmp_path / "embeddings"


@pytest.fixture
def store(tmp_path: Path, families_root: Path) -> ModelStore:
    (tmp_path / "checkpoints").symlink_to(families_root / "checkpoints")
    return ModelStore(ModelsFolder(tmp_path, ttl_s=0), torch.device("cpu"), 2**30)


def chunks(prompt: str, store: ModelStore) -> list[Chunk]:
    return chunks_of(prompt, load_tokenizer(), lambda word: find_embedding(store, word))


def tokens(prompt: str, store: ModelStore) -> list[tuple[Token | None, float]]:
    """Of the first chunk, learned ones as None."""
    (chunk, *_) = chunks(prompt, store)
    inner = chunk[1 : [token for token, _ in chunk].index(END)]
    return [(None if isinstance(t, LearnedToken) else t, weight) for t, weight in inner]


def rows(count: int, width: int = 16) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize("name", ["word", "word.safetensors", "sub/word"])
def test_a_learned_word_takes_as_many_tokens_as_it_has_vectors(
    name: str, folder: Path, store: ModelStore
) -> None:
    for path in (folder / "word.safetensors", folder / "sub" / "word.safetensors"):
        save_file({"emb_params": rows(3)}, path)
    plain = tokens("a (cat:1.3), sleeping", store)
    found = tokens(f"a (cat embedding:{name}:1.3), sleeping", store)
    assert found == [*plain[:2], *[(None, 1.3)] * 3, *plain[2:]]


def test_a_comma_behind_the_name_is_a_word_of_its_own(folder: Path, store: ModelStore) -> None:
    save_file({"anything": rows(1)[0]}, folder / "word.safetensors")
    comma = tokens(",", store)
    assert tokens("embedding:word,", store) == [(None, 1.0), *comma]


def test_a_missing_one_is_left_out_and_logged(
    store: ModelStore, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert tokens("a embedding:missing cat", store) == tokens("a cat", store)
    assert [record.__dict__["embedding"] for record in caplog.records] == ["missing"]


def test_a_short_one_is_never_split_over_two_chunks(folder: Path, store: ModelStore) -> None:
    save_file({"emb_params": rows(4)}, folder / "word.safetensors")
    first, second = chunks("cat " * 73 + "embedding:word", store)
    assert first[74][0] == END
    assert [isinstance(token, LearnedToken) for token, _ in second[1:6]] == [True] * 4 + [False]


def test_a_pickled_or_foreign_one_is_refused(folder: Path, store: ModelStore) -> None:
    (folder / "old.pt").touch()
    with pytest.raises(CheckpointUnavailable, match="pickled"):
        tokens("embedding:old", store)
    save_file({"a": rows(1), "b": rows(1)}, folder / "two.safetensors")
    with pytest.raises(CheckpointUnavailable, match="no embedding"):
        tokens("embedding:two", store)


def test_vectors_go_to_the_text_encoder_that_they_were_learned_for(
    families_root: Path, folder: Path, store: ModelStore
) -> None:
    """A word's own vectors in its place draw what the word draws; SDXL has one set for each."""
    from engine.diffusion.checkpoints import load_checkpoint

    clip = load_checkpoint(store, "sdxl.safetensors").clip
    (cat,) = [token for token, _ in tokens("cat", store)]
    own = {
        encoder.style.key: encoder.text_model.embeddings.token_embedding.weight[[cat]].clone()
        for encoder in clip.encoders
    }
    save_file(own, folder / "cat.safetensors")
    save_file({"clip_g": own["clip_g"]}, folder / "half.safetensors")
    names = ["cat", "embedding:cat", "embedding:half", "dog"]
    prompts = [text_to_image(steps=1) for _ in names]
    for prompt, name in zip(prompts, names, strict=True):
        prompt["4"]["inputs"]["ckpt_name"] = "sdxl.safetensors"
        prompt["6"]["inputs"]["text"] = f"a {name} (sleeping:1.2)"
    found = [torch.tensor(r[0]) for r in all_latents_and_images(prompts, Catalogue(store.models))]
    distances = [float((each - found[0]).abs().max()) for each in found[1:]]
    assert distances[0] < 1e-5
    assert min(distances[1:]) > 1e-3
