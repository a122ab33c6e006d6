"""The WebUI's chunks, weights and texts that change by step, with tiny checkpoints."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from engine.diffusion.conditioning.condition import Conditioning
from engine.diffusion.loading.checkpoints import load_checkpoint
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.samplers.noise_levels import STABLE_DIFFUSION
from engine.diffusion.samplers.schedules import sigmas_for
from engine.diffusion.text.encoding import load_tokenizer
from engine.diffusion.text.text_encoders import END, START
from engine.diffusion.text.webui_texts import chunks_of, sigma_ranges_of, weigh_keeping_mean
from engine.webui.prompt import Stretch, read_negative_prompt
from tests.support.engine.bodies import outputs_of
from tests.support.engine.latents import farthest
from tests.support.engine.make_prompts import COUNT, OUT
from tests.support.engine.stores import store_of
from tests.support.engine.workflows import RunAll, Submit, text_to_image, webui_texts_of

TOKENIZER = load_tokenizer()
PROMPTS = json.loads(OUT.read_text())


def words(prompt: str) -> list[list[str]]:
    """The words of each chunk."""
    (part,) = read_negative_prompt(prompt, steps=1)
    chunks = chunks_of(part.stretches[0].sections, TOKENIZER)
    assert all(len(chunk) == 77 for chunk in chunks)
    tokens = [[token for token, _ in chunk if token not in (START, END)] for chunk in chunks]
    return [[TOKENIZER.decode([token]).strip() for token in each] for each in tokens]


def lengths(prompt: str) -> list[int]:
    return [len(chunk) for chunk in words(prompt)]


def test_break_begins_a_chunk() -> None:
    assert words("") == [[]]
    assert words("a dog BREAK a cat") == [["a", "dog"], ["a", "cat"]]
    assert words("BREAK a BREAK") == [[], ["a"]]
    assert words("BREAK BREAK") == [[], []]


def test_a_full_chunk_is_followed_by_another() -> None:
    assert lengths("dog " * 75) == [75]
    assert lengths("dog " * 76) == [75, 1]
    assert lengths("dog " * 75 + "BREAK cat") == [75, 1]


def test_what_stands_behind_a_near_comma_moves_to_the_next_chunk() -> None:
    assert lengths("dog " * 55 + ", " + "cat " * 20) == [56, 20]
    assert lengths("dog " * 54 + ", " + "cat " * 21) == [75, 1]
    assert lengths("dog " * 74 + ", " + "cat") == [75, 1]
    assert words("dog " * 75 + ", cat")[1] == [",", "cat"]


@pytest.mark.parametrize("number", range(COUNT))
def test_tokens_chunks_and_multipliers_are_those_of_the_reference(number: int) -> None:
    prompt, tokens, multipliers = PROMPTS[number]
    (part,) = read_negative_prompt(prompt, steps=1)
    chunks = chunks_of(part.stretches[0].sections, TOKENIZER)
    for chunk, own_tokens, own in zip(chunks, tokens, multipliers, strict=True):
        found = chunk[1 : len(own_tokens) + 1]
        assert [token for token, _ in found] == own_tokens
        assert [weight for _, weight in found] == pytest.approx(own)
        assert set(chunk[len(own_tokens) + 1 :]) == {(END, 1.0)}


def test_weighting_keeps_the_mean_of_a_chunk() -> None:
    chunk = torch.randn(77, 8, generator=torch.Generator().manual_seed(0)) + 0.5
    weights = torch.ones(77, 1)
    weights[3] = 1.5
    found = weigh_keeping_mean(chunk, weights, chunk)
    assert found.mean() == pytest.approx(float(chunk.mean()), rel=1e-5)
    ratio = found / chunk
    assert torch.allclose(ratio[3] / ratio[4], torch.tensor(1.5))


@given(
    st.sampled_from(["normal", "karras", "beta", "ddim_uniform"]),
    st.integers(1, 30),
    st.sets(st.integers(1, 40), max_size=6),
    st.floats(0, 20),
)
def test_exactly_one_text_counts_at_any_level(
    scheduler: str, steps: int, ends: set[int], anywhere: float
) -> None:
    sigmas = sigmas_for(STABLE_DIFFUSION, scheduler, steps)
    stretches = [Stretch(end, ()) for end in sorted(ends | {41})]
    ranges = list(sigma_ranges_of(stretches, sigmas))
    edges = [edge for _, levels in ranges for edge in levels]
    between = [math.nextafter(edge, to) for edge in edges for to in (0.0, math.inf)]
    for sigma in [*map(float, sigmas), anywhere, *edges, *between]:
        assert sum(least <= sigma <= most for _, (most, least) in ranges) == 1
    for call, sigma in enumerate(map(float, sigmas[:-1])):
        (found,) = (each for each, (most, least) in ranges if least <= sigma <= most)
        assert found == next(each for each in stretches if call <= each.last_step)


def test_without_levels_the_first_text_is_the_one() -> None:
    stretches = [Stretch(3, ()), Stretch(10, ())]
    assert list(sigma_ranges_of(stretches, torch.empty(0))) == [(stretches[0], (math.inf, 0.0))]


def webui(text: str, negative: str = "", **sampler: Any) -> dict[str, Any]:
    """The default workflow with texts in the WebUI's syntax."""
    graph = text_to_image(**sampler, negative=["6", 1])
    return graph | {"6": webui_texts_of(graph["3"], text, negative)}


def test_plain_prompts_give_the_picture_of_comfyuis_node(run_all: RunAll) -> None:
    ours, theirs = run_all([webui("a red circle"), text_to_image()])
    assert farthest(ours, theirs) <= 1


def test_weights_breaks_and_edits_change_the_picture(run_all: RunAll) -> None:
    texts = ["a red circle", "a (red:1.5) circle", "a [red] circle", "a red BREAK circle"]
    texts += ["a [red:blue:0.25] circle", "a [red|blue] circle", "a red circle :1.3"]
    texts += ["a red circle AND a blue square", "a red circle AND a blue square :0.5"]
    pictures = run_all([webui(text, steps=8) for text in texts])
    for index, picture in enumerate(pictures):
        assert all(farthest(picture, other) > 1 for other in pictures[:index]), texts[index]


@pytest.mark.parametrize("sampler", ["euler", "heun", "dpmpp_2m_sde", "dpm_adaptive", "uni_pc"])
def test_an_edit_that_is_over_or_never_comes_changes_nothing(run_all: RunAll, sampler: str) -> None:
    texts = ["a red circle", "a [blue:red:0] circle", "a [red:blue:99] circle"]
    plain, *others = run_all([webui(text, sampler_name=sampler) for text in texts])
    assert max(farthest(plain, other) for other in others) <= 1


def test_composition_adds_what_each_text_asks_for(run_all: RunAll) -> None:
    """Guidance is linear: composing a text with itself doubles the guidance."""
    same = "a red circle AND a red circle"
    against = "a red circle :2 AND blue AND blue :-1"
    doubled = webui("a red circle", cfg=4.0)
    twice, *others = run_all([doubled, webui(same, cfg=2.0), webui(against, cfg=2.0)])
    assert max(farthest(twice, other) for other in others) <= 1


def test_texts_that_pull_against_each_other_leave_the_negative(run_all: RunAll) -> None:
    texts = ("red AND red :-1", "blue")
    assert farthest(*run_all([webui(text, "blue", cfg=5.0) for text in texts])) <= 1


def test_an_edited_prompt_takes_no_more_rows_than_another(submit: Submit) -> None:
    ends = [submit(webui("[a|b|c|d|e|f|g|h] circle", steps=8)) for _ in range(4)]
    assert all(len(each.images()) == 1 for each in ends)


ALL = {"pads_texts": True, "makes_plain": True, "zeroes_empty_negative": True}


@pytest.fixture
def store(tmp_path: Path, families_root: Path) -> ModelStore:
    (tmp_path / "checkpoints").symlink_to(families_root / "checkpoints")
    return store_of(tmp_path)


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
