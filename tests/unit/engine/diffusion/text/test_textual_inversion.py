"""Textual inversion embeddings in prompts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.diffusion.loading.checkpoints import load_checkpoint
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.text import webui_texts
from engine.diffusion.text.encoding import Chunk, chunks_of, load_tokenizer
from engine.diffusion.text.text_encoders import END, START, EmbeddingToken, Token
from engine.diffusion.text.textual_inversion import Embeddings
from engine.errors import CheckpointUnavailable
from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from engine.reports import Finished
from engine.webui.prompt import read_negative_prompt
from tests.support.engine.engines import running
from tests.support.engine.latents import latents_of
from tests.support.engine.stores import store_of
from tests.support.engine.workflows import text_to_image, webui_texts_of


@pytest.fixture
def store(tmp_path: Path, families_root: Path) -> ModelStore:
    (tmp_path / "checkpoints").symlink_to(families_root / "checkpoints")
    (tmp_path / "embeddings" / "sub").mkdir(parents=True)
    return store_of(tmp_path)


def put(store: ModelStore, name: str, vectors: int | Mapping[str, Tensor]) -> None:
    """Write an embedding with these tensors, or with so many vectors."""
    if isinstance(vectors, int):
        vectors = {"emb_params": rows(vectors)}
    save_file(dict(vectors), store.models.root / "embeddings" / f"{name}.safetensors")


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
    found = webui_texts.chunks_of(part.stretches[0].sections, load_tokenizer(), Embeddings(store))
    assert all(len(chunk) == 77 for chunk in found)
    inner = [[token for token, _ in chunk if token not in (START, END)] for chunk in found]
    return [[str(t.index) if isinstance(t, EmbeddingToken) else t for t in each] for each in inner]


def rows(count: int, width: int = 16) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize("name", ["word", "word.safetensors", "sub/word"])
def test_an_embedding_takes_as_many_tokens_as_it_has_vectors(name: str, store: ModelStore) -> None:
    put(store, "word", 3)
    put(store, "sub/word", 3)
    plain = tokens("a (cat:1.3), sleeping", store)
    found = tokens(f"a (cat embedding:{name}:1.3), sleeping", store)
    assert found == [*plain[:2], *[(None, 1.3)] * 3, *plain[2:]]


def test_one_is_found_in_any_folder_the_outermost_first(store: ModelStore) -> None:
    put(store, "sub/word", 3)
    put(store, "sub/sword", 4)
    assert len(tokens("embedding:word", store)) == 3
    assert tokens("embedding:ord", store) == []
    put(store, "word", 2)
    assert len(tokens("embedding:word", store)) == 2
    assert len(tokens("embedding:sub/word", store)) == 3


def test_a_comma_behind_the_name_is_a_word_of_its_own(store: ModelStore) -> None:
    put(store, "word", {"anything": rows(1)[0]})
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


def test_the_folder_is_read_once_a_text(
    store: ModelStore, caplog: pytest.LogCaptureFixture
) -> None:
    put(store, "word", 1)
    store.models = counted = CountedFolder(store.models.root)
    many = " ".join(f"embedding:unknown{number}, embedding:word" for number in range(500))
    assert len(chunks(many, store)) == 14
    assert counted.read == 2
    assert len(caplog.records) == 1
    chunks("no embedding at all", store)
    assert counted.read == 2
    in_webui("word " * 500, store)
    assert counted.read == 3


def test_a_short_one_is_never_split_over_two_chunks(store: ModelStore) -> None:
    put(store, "word", 4)
    first, second = chunks("cat " * 73 + "embedding:word", store)
    assert first[74][0] == END
    assert [isinstance(token, EmbeddingToken) for token, _ in second[1:6]] == [True] * 4 + [False]


def test_a_pickled_or_foreign_one_is_refused(store: ModelStore) -> None:
    (store.models.root / "embeddings" / "old.pt").touch()
    with pytest.raises(CheckpointUnavailable, match="pickled"):
        tokens("embedding:old", store)
    put(store, "two", {"a": rows(1), "b": rows(1)})
    with pytest.raises(CheckpointUnavailable, match="not an embedding"):
        tokens("embedding:two", store)


@pytest.mark.parametrize("count", [0, 1025])
def test_one_without_vectors_or_with_very_many_is_refused(store: ModelStore, count: int) -> None:
    put(store, "word", count)
    with pytest.raises(CheckpointUnavailable, match="must have 1 to 1024 vectors"):
        tokens("embedding:word", store)


def test_in_the_webuis_syntax_the_bare_name_is_enough(store: ModelStore) -> None:
    put(store, "sub/my-word", 2)
    put(store, "my-word-2", 3)
    ((cat,),) = in_webui("cat", store)
    ((comma,),) = in_webui(",", store)
    assert in_webui("cat, my-word cat", store) == [[cat, comma, "0", "1", cat]]
    assert in_webui("My-Word-2, (my-word:1.2)cat", store) == [["0", "1", "2", comma, "0", "1", cat]]
    assert in_webui("my word", store)[0][0] != "0"


def test_in_the_webuis_syntax_too_it_is_not_split(store: ModelStore) -> None:
    put(store, "word", 4)
    put(store, "long", 80)
    first, second = in_webui("cat " * 72 + "word cat", store)
    assert (len(first), second[:4]) == (72, ["0", "1", "2", "3"])
    assert [len(each) for each in in_webui("cat " * 71 + "word cat", store)] == [75, 1]
    assert [len(each) for each in in_webui("cat long cat", store)] == [1, 75, 6]


def test_its_weight_is_that_of_what_is_around_it(store: ModelStore) -> None:
    put(store, "word", 2)
    (part,) = read_negative_prompt("a (word:1.3)", steps=1)
    sections = part.stretches[0].sections
    (chunk,) = webui_texts.chunks_of(sections, load_tokenizer(), Embeddings(store))
    assert [weight for _, weight in chunk[:5]] == [1, 1, 1.3, 1.3, 1]


def own_vectors(store: ModelStore) -> dict[str, Tensor]:
    """The vectors of "cat" in SDXL's text encoders."""
    clip = load_checkpoint(store, "sdxl.safetensors").clip
    (cat,) = [token for token, _ in tokens("cat", store)]
    weights = {
        each.spec.embedding_key: each.text_model.embeddings.token_embedding.weight
        for each in clip.encoders
    }
    return {key: weight[[cat]].clone() for key, weight in weights.items()}


def distances(prompts: Sequence[dict[str, Any]], store: ModelStore) -> list[float]:
    """The largest differences of all other latents to the first, as parts of its largest value."""
    first, *others = latents_of(prompts, Catalogue(store.models))
    return [float(abs(each - first).max() / abs(first).max()) for each in others]


def sdxl(text: str) -> dict[str, Any]:
    prompt = text_to_image(steps=1)
    prompt["4"]["inputs"]["ckpt_name"] = "sdxl.safetensors"
    prompt["6"]["inputs"]["text"] = text
    return prompt


def test_vectors_go_to_the_text_encoder_that_they_were_trained_for(store: ModelStore) -> None:
    """An embedding of a word's own vectors draws what the word draws; SDXL has two sets of them."""
    own = own_vectors(store)
    put(store, "cat", own)
    put(store, "half", {"clip_g": own["clip_g"]})
    names = ["cat", "embedding:cat", "embedding:half", "dog"]
    same, *others = distances([sdxl(f"a {name} (sleeping:1.2)") for name in names], store)
    assert same < 1e-5
    assert min(others) > 0.01


def notes_of(prompt: dict[str, Any], store: ModelStore) -> tuple[str, ...]:
    with running(store.models.root) as rig:
        end = rig.submit(prompt).wait()
    assert isinstance(end, Finished), end
    return end.notes


def test_each_that_is_left_out_has_a_note(store: ModelStore) -> None:
    own = own_vectors(store)
    put(store, "whole", own)
    put(store, "half", {"clip_g": own["clip_g"]})
    text = "a embedding:missing, (embedding:half:1.1) (embedding:gone) embedding:whole cat"
    assert notes_of(sdxl(text), store) == (
        "embedding_left_out: missing",
        "embedding_left_out: half",
        "embedding_left_out: gone",
    )
    assert notes_of(sdxl("half a embedding:whole"), store) == ()


@pytest.mark.parametrize("makes_plain", [True, False])
def test_in_the_webuis_syntax_one_that_does_not_fit_has_a_note(
    store: ModelStore, *, makes_plain: bool
) -> None:
    own = own_vectors(store)
    put(store, "sub/wholeword", own)
    put(store, "halfword", {"clip_g": own["clip_g"]})
    prompt = sdxl("")
    prompt["6"] = webui_texts_of(prompt["3"], "a wholeword, (halfword:1.2)")
    prompt["6"]["inputs"]["makes_plain"] = makes_plain
    assert notes_of(prompt, store) == ("embedding_left_out: halfword",)


def test_the_webuis_text_node_reads_them(store: ModelStore) -> None:
    put(store, "my-cat", own_vectors(store))
    prompts = [sdxl("") for _ in range(3)]
    for prompt, text in zip(prompts, ("a (cat:1.2)", "a (my-cat:1.2)", "a (dog:1.2)"), strict=True):
        prompt["6"] = webui_texts_of(prompt["3"], text)
    same, other = distances(prompts, store)
    assert same < 1e-5
    assert other > 0.01
