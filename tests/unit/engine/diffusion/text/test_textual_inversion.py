"""Textual inversion embeddings in prompts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.diffusion.loading.checkpoints import load_checkpoint
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.text import webui as webui_text
from engine.diffusion.text.encoding import Chunk, chunks_of, load_tokenizer
from engine.diffusion.text.text_encoders import END, START, EmbeddingToken, Token
from engine.diffusion.text.textual_inversion import Embeddings
from engine.errors import CheckpointUnavailable
from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from engine.webui.prompt import read_negative_prompt
from tests.support.engine.latents import all_latents_and_images
from tests.support.engine.workflows import node, text_to_image


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "embeddings" / "sub").mkdir(parents=True)
    return tmp_path / "embeddings"


@pytest.fixture
def store(tmp_path: Path, families_root: Path) -> ModelStore:
    (tmp_path / "checkpoints").symlink_to(families_root / "checkpoints")
    return ModelStore(ModelsFolder(tmp_path, ttl_s=0), torch.device("cpu"), 2**30)


def chunks(prompt: str, store: ModelStore) -> list[Chunk]:
    return chunks_of(prompt, load_tokenizer(), Embeddings(store))


def tokens(prompt: str, store: ModelStore) -> list[tuple[Token | None, float]]:
    """The tokens of the first chunk; None for those of embeddings."""
    (chunk, *_) = chunks(prompt, store)
    inner = chunk[1 : [token for token, _ in chunk].index(END)]
    return [(None if isinstance(t, EmbeddingToken) else t, weight) for t, weight in inner]


def in_webui(prompt: str, store: ModelStore) -> list[list[Token | str]]:
    """The tokens of each chunk in the WebUI's syntax; "0", "1", ... for those of embeddings."""
    (part,) = read_negative_prompt(prompt, steps=1)
    found = webui_text.chunks_of(part.stretches[0].sections, load_tokenizer(), Embeddings(store))
    assert all(len(chunk) == 77 for chunk in found)
    inner = [[token for token, _ in chunk if token not in (START, END)] for chunk in found]
    return [[str(t.row) if isinstance(t, EmbeddingToken) else t for t in each] for each in inner]


def rows(count: int, width: int = 16) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize("name", ["word", "word.safetensors", "sub/word"])
def test_an_embedding_takes_as_many_tokens_as_it_has_vectors(
    name: str, folder: Path, store: ModelStore
) -> None:
    for path in (folder / "word.safetensors", folder / "sub" / "word.safetensors"):
        save_file({"emb_params": rows(3)}, path)
    plain = tokens("a (cat:1.3), sleeping", store)
    found = tokens(f"a (cat embedding:{name}:1.3), sleeping", store)
    assert found == [*plain[:2], *[(None, 1.3)] * 3, *plain[2:]]


def test_one_is_found_in_any_folder_the_outermost_first(folder: Path, store: ModelStore) -> None:
    save_file({"emb_params": rows(3)}, folder / "sub" / "word.safetensors")
    save_file({"emb_params": rows(4)}, folder / "sub" / "sword.safetensors")
    assert len(tokens("embedding:word", store)) == 3
    assert tokens("embedding:ord", store) == []
    save_file({"emb_params": rows(2)}, folder / "word.safetensors")
    assert len(tokens("embedding:word", store)) == 2
    assert len(tokens("embedding:sub/word", store)) == 3


def test_a_comma_behind_the_name_is_a_word_of_its_own(folder: Path, store: ModelStore) -> None:
    save_file({"anything": rows(1)[0]}, folder / "word.safetensors")
    comma = tokens(",", store)
    assert tokens("embedding:word,", store) == [(None, 1.0), *comma]


def test_a_missing_one_is_left_out_and_logged_without_its_name(
    store: ModelStore, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert tokens("a embedding:missing cat", store) == tokens("a cat", store)
    [record] = caplog.records
    assert record.__dict__["chars"] == len("missing")
    assert "missing" not in str(vars(record))


class CountedFolder(ModelsFolder):
    """Counts how often the folder is read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, ttl_s=0)
        self.read = 0

    def names(self, kind: str) -> tuple[str, ...]:
        self.read += 1
        return super().names(kind)

    def pickled(self, kind: str) -> dict[str, Path]:
        self.read += 1
        return super().pickled(kind)


def test_the_folder_is_read_once_for_a_text(
    folder: Path, store: ModelStore, caplog: pytest.LogCaptureFixture
) -> None:
    save_file({"emb_params": rows(1)}, folder / "word.safetensors")
    store.models = counted = CountedFolder(folder.parent)
    many = " ".join(f"embedding:unknown{number}, embedding:word" for number in range(500))
    assert len(chunks(many, store)) == 14
    assert counted.read == 2
    assert len(caplog.records) == 1
    chunks("no embedding at all", store)
    assert counted.read == 2
    in_webui("word " * 500, store)
    assert counted.read == 3


def test_a_short_one_is_never_split_over_two_chunks(folder: Path, store: ModelStore) -> None:
    save_file({"emb_params": rows(4)}, folder / "word.safetensors")
    first, second = chunks("cat " * 73 + "embedding:word", store)
    assert first[74][0] == END
    assert [isinstance(token, EmbeddingToken) for token, _ in second[1:6]] == [True] * 4 + [False]


def test_a_pickled_or_foreign_one_is_refused(folder: Path, store: ModelStore) -> None:
    (folder / "old.pt").touch()
    with pytest.raises(CheckpointUnavailable, match="pickled"):
        tokens("embedding:old", store)
    save_file({"a": rows(1), "b": rows(1)}, folder / "two.safetensors")
    with pytest.raises(CheckpointUnavailable, match="no embedding"):
        tokens("embedding:two", store)


def test_in_the_webuis_syntax_the_bare_name_is_enough(folder: Path, store: ModelStore) -> None:
    save_file({"emb_params": rows(2)}, folder / "sub" / "my-word.safetensors")
    save_file({"emb_params": rows(3)}, folder / "my-word-2.safetensors")
    ((cat,),) = in_webui("cat", store)
    ((comma,),) = in_webui(",", store)
    assert in_webui("cat, my-word cat", store) == [[cat, comma, "0", "1", cat]]
    assert in_webui("My-Word-2, (my-word:1.2)cat", store) == [["0", "1", "2", comma, "0", "1", cat]]
    assert in_webui("my word", store)[0][0] != "0"


def test_in_the_webuis_syntax_too_it_is_not_split(folder: Path, store: ModelStore) -> None:
    save_file({"emb_params": rows(4)}, folder / "word.safetensors")
    save_file({"emb_params": rows(80)}, folder / "long.safetensors")
    first, second = in_webui("cat " * 72 + "word cat", store)
    assert (len(first), second[:4]) == (72, ["0", "1", "2", "3"])
    assert [len(each) for each in in_webui("cat " * 71 + "word cat", store)] == [75, 1]
    assert [len(each) for each in in_webui("cat long cat", store)] == [1, 75, 6]


def test_its_weight_is_that_of_what_is_around_it(folder: Path, store: ModelStore) -> None:
    save_file({"emb_params": rows(2)}, folder / "word.safetensors")
    (part,) = read_negative_prompt("a (word:1.3)", steps=1)
    sections = part.stretches[0].sections
    (chunk,) = webui_text.chunks_of(sections, load_tokenizer(), Embeddings(store))
    assert [weight for _, weight in chunk[:5]] == [1, 1, 1.3, 1.3, 1]


def own_vectors(store: ModelStore) -> dict[str, Tensor]:
    """The vectors of "cat" in SDXL's text encoders."""
    clip = load_checkpoint(store, "sdxl.safetensors").clip
    (cat,) = [token for token, _ in tokens("cat", store)]
    return {
        encoder.spec.embedding_key: encoder.text_model.embeddings.token_embedding.weight[
            [cat]
        ].clone()
        for encoder in clip.encoders
    }


def distances(prompts: Sequence[dict[str, Any]], store: ModelStore) -> list[float]:
    """The largest differences of all other latents to the first, as parts of its largest value."""
    found = [torch.tensor(r[0]) for r in all_latents_and_images(prompts, Catalogue(store.models))]
    return [float((each - found[0]).abs().max() / found[0].abs().max()) for each in found[1:]]


def sdxl(text: str) -> dict[str, Any]:
    prompt = text_to_image(steps=1)
    prompt["4"]["inputs"]["ckpt_name"] = "sdxl.safetensors"
    prompt["6"]["inputs"]["text"] = text
    return prompt


def test_vectors_go_to_the_text_encoder_that_they_were_trained_for(
    folder: Path, store: ModelStore
) -> None:
    """An embedding of a word's own vectors draws what the word draws; SDXL has two sets of them."""
    own = own_vectors(store)
    save_file(own, folder / "cat.safetensors")
    save_file({"clip_g": own["clip_g"]}, folder / "half.safetensors")
    names = ["cat", "embedding:cat", "embedding:half", "dog"]
    same, *others = distances([sdxl(f"a {name} (sleeping:1.2)") for name in names], store)
    assert same < 1e-5
    assert min(others) > 0.01


def test_the_webuis_text_node_reads_them(folder: Path, store: ModelStore) -> None:
    save_file(own_vectors(store), folder / "my-cat.safetensors")
    prompts = [sdxl("") for _ in range(3)]
    for prompt, text in zip(prompts, ("a (cat:1.2)", "a (my-cat:1.2)", "a (dog:1.2)"), strict=True):
        sampler = prompt["3"]["inputs"]
        schedule = {
            k: sampler[k] for k in ("steps", "sampler_name", "scheduler", "denoise", "model")
        }
        texts = {"text": text, "negative_text": "", "steps_before": 0}
        prompt["6"] = node("WebUITextEncode", clip=["4", 1], **texts, **schedule)
    same, other = distances(prompts, store)
    assert same < 1e-5
    assert other > 0.01
