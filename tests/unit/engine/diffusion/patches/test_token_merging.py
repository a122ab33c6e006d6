"""Queries that attend as one: which are merged, and that each job merges as it would alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from engine.diffusion.patches import token_merging
from engine.diffusion.patches.call_draws import CallDraws
from engine.diffusion.patches.token_merging import Match, TokenMerging, kept_places
from engine.diffusion.patches.variants import variant_of
from engine.graph.catalogue import Catalogue
from tests.support.engine.latents import all_latents_and_images
from tests.support.engine.tiny_unet import answer_of
from tests.support.engine.workflows import node, text_to_image


def drawn_by(seed: int) -> CallDraws:
    return CallDraws(0, torch.Generator().manual_seed(seed))


def merging(unet: Any, ratio: float, x: Tensor, seeds: list[int]) -> Any:
    settings = TokenMerging(ratio)
    changed = variant_of(unet, settings, settings.patch)
    changed.drawn_rows.tell([drawn_by(seed) for seed in seeds], [1] * len(seeds), x)
    return changed


def test_one_place_of_each_square_is_kept() -> None:
    drawn = torch.tensor([[0, 1], [2, 3]])
    # A picture of 4 x 5: what is over at the edge is merged into others as well.
    assert kept_places(drawn, 5).tolist() == [0, 3, 15, 18]


def test_those_that_are_most_alike_become_their_mean_and_get_it_back() -> None:
    places = torch.tensor([[[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [-1.0, -1.0]]])
    match = Match.of(places, torch.tensor([0, 2]), 1)
    merged = match.merged(places)
    assert torch.allclose(merged, torch.tensor([[[-1.0, -1.0], [0.95, 0.05], [0.0, 1.0]]]))
    back = match.unmerged(merged)
    assert torch.allclose(back[0, 0], back[0, 1])
    assert torch.equal(back[0, 2:], places[0, 2:])


@torch.inference_mode()
def test_places_are_compared_some_at_a_time_so_that_a_large_image_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hidden, targets = torch.randn(2, 300, 8), torch.arange(0, 300, 4)
    whole = Match.of(hidden, targets, 90)
    monkeypatch.setattr(token_merging, "_LIKENESS_BYTES", 2 * 75 * 4 * 10)
    with LargestTensor() as largest:
        parts = Match.of(hidden, targets, 90)
    assert torch.equal(whole.gone, parts.gone)
    assert torch.equal(whole.into, parts.into)
    assert largest.elements == hidden.numel()


class LargestTensor(TorchDispatchMode):
    """Sees how large the tensors are that are made inside of it."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        made = [each for each in tree_leaves(found) if isinstance(each, Tensor)]
        self.elements = max([self.elements, *(each.numel() for each in made)])
        return found


def test_all_that_can_be_merged_are_merged_and_none_without_a_ratio(unet: Any) -> None:
    x = torch.randn(1, 4, 8, 8)
    assert torch.equal(answer_of(merging(unet, 0.0, x, [1]), x), answer_of(unet, x))
    whole = answer_of(merging(unet, 1.0, x, [1]), x)
    assert whole.isfinite().all()
    assert not torch.allclose(whole, answer_of(unet, x), atol=1e-4)


def test_a_strip_is_too_narrow_to_be_merged(unet: Any) -> None:
    x = torch.randn(1, 4, 1, 16)
    assert torch.equal(answer_of(merging(unet, 0.5, x, [1]), x), answer_of(unet, x))


def test_rows_of_other_jobs_are_merged_as_they_are_alone(unet: Any) -> None:
    x = torch.randn(2, 4, 9, 12)
    together = answer_of(merging(unet, 0.4, x, [3, 4]), x)
    tokens = torch.randn((2, 77, 16), generator=torch.Generator().manual_seed(2))
    for row, seed in enumerate((3, 4)):
        one, times = x[row : row + 1], torch.tensor([[999], [10]])[row]
        changed = merging(unet, 0.4, one, [seed])
        alone = changed(one, times, tokens[row : row + 1], return_dict=False)[0]
        assert torch.allclose(together[row], alone[0], atol=1e-5)


def test_a_call_that_is_made_again_draws_the_same() -> None:
    draws = drawn_by(5)
    first = [draws.integers(layer, 4, (3, 2, 1)) for layer in (0, 1)]
    again = [draws.integers(layer, 4, (3, 2, 1)) for layer in (1, 0)]
    assert torch.equal(first[0], again[1])
    assert torch.equal(first[1], again[0])


def prompt(seed: int, ratio: float) -> dict[str, Any]:
    made = text_to_image(model=["m", 0], seed=seed, steps=3)
    return made | {"m": node("TomePatchModel", model=["4", 0], ratio=ratio)}


def test_jobs_at_once_give_what_each_gives_alone(catalogue: Catalogue) -> None:
    prompts = [prompt(1, 0.4), prompt(2, 0.4), text_to_image(seed=1, steps=3)]
    together = all_latents_and_images(prompts, catalogue)
    for each, (latent, _) in zip(prompts, together, strict=True):
        ((alone, _),) = all_latents_and_images([each], catalogue)
        assert abs(latent - alone).max() < 1e-4
    assert abs(together[0][0] - together[2][0]).max() > 1e-3
