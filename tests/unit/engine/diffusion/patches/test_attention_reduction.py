"""Self-attention in tiles, and queries that attend as one: each job as it would be alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from engine.diffusion.patches import attention_reduction
from engine.diffusion.patches.attention_reduction import (
    CallDraws,
    HyperTile,
    Match,
    TiledAttention,
    TokenMerging,
    sides_of,
    target_positions,
)
from engine.diffusion.patches.variants import variant_of
from engine.graph.catalogue import Catalogue
from tests.support.engine.latents import latents_of
from tests.support.engine.tiny_unet import answer_of
from tests.support.engine.workflows import node, text_to_image


def tiled(unet: Any, **changes: Any) -> Any:
    settings = HyperTile(
        **({"tile_size": 32, "swap_size": 1, "max_depth": 0, "scale_depth": False} | changes)
    )
    return variant_of(unet, settings, settings.patch)


def told(unet: Any, x: Tensor, calls: list[int]) -> Any:
    draws = [CallDraws(number, torch.Generator()) for number in calls]
    unet.drawn_rows.assign(draws, [1] * len(calls), x)
    return unet


@pytest.mark.parametrize(
    ("count", "ratio", "sides"),
    [
        (64, 1.0, (8, 8)),
        (96, 1.5, (12, 8)),
        (96, 2 / 3, (8, 12)),
        (35, 1.0, (7, 5)),
        (13, 1.0, (13, 1)),
        (1, 4.0, (1, 1)),
    ],
)
def test_a_number_of_places_has_sides(count: int, ratio: float, sides: tuple[int, int]) -> None:
    assert math.prod(sides_of(count, ratio)) == count
    assert sides_of(count, ratio) == sides


def test_each_query_sees_the_part_of_the_keys_that_its_tile_is(unet: Any) -> None:
    x = torch.randn(1, 4, 8, 8)
    changed = told(tiled(unet), x, [0])
    layer = next(each for each in changed.modules() if isinstance(each, TiledAttention))
    hidden = torch.randn(1, 64, 8)
    query, key, value = layer.projections(hidden)
    picture = query.view(8, 8, 8)
    found = torch.empty(8, 8, 8)
    for tile in range(4):
        rows, columns = (slice(4 * side, 4 * side + 4) for side in divmod(tile, 2))
        part = slice(16 * tile, 16 * tile + 16)
        own = layer.attended_values(
            picture[rows, columns].reshape(1, 16, 8), key[:, part], value[:, part]
        )
        found[rows, columns] = own.view(4, 4, 8)
    assert torch.allclose(layer(hidden), layer.output(found.view(1, 64, 8)), atol=1e-6)


def test_only_the_levels_that_are_asked_for_are_cut(unet: Any) -> None:
    def count(depth: int) -> int:
        layers = tiled(unet, max_depth=depth).modules()
        return sum(isinstance(each, TiledAttention) for each in layers)

    assert [count(depth) for depth in range(4)] == [5, 10, 16, 16]


def test_tiles_as_large_as_the_picture_change_no_answer(unet: Any) -> None:
    x = torch.randn(2, 4, 8, 12)
    whole = told(tiled(unet, tile_size=2048, max_depth=3, scale_depth=True), x, [0, 5])
    assert torch.allclose(answer_of(whole, x), answer_of(unet, x), atol=1e-5)


TILED = {"tile_size": 32, "swap_size": 2, "max_depth": 1, "scale_depth": False}


def patched(seed: int, steps: int, class_type: str, **settings: Any) -> dict[str, Any]:
    made = text_to_image(model=["m", 0], seed=seed, steps=steps)
    made["5"]["inputs"] |= {"width": 128, "height": 64}
    return made | {"m": node(class_type, model=["4", 0], **settings)}


@pytest.mark.parametrize(
    ("class_type", "settings", "nothing"),
    [("HyperTile", TILED, {"tile_size": 2048}), ("TomePatchModel", {"ratio": 0.4}, {"ratio": 0.0})],
)
def test_jobs_at_once_give_what_each_gives_alone(
    class_type: str, settings: dict[str, Any], nothing: dict[str, Any], catalogue: Catalogue
) -> None:
    prompts = [
        patched(1, 3, class_type, **settings),
        patched(2, 2, class_type, **settings),
        patched(1, 3, class_type, **settings | nothing),
    ]
    together = latents_of([*prompts, text_to_image(steps=2)], catalogue)
    for prompt, latent in zip(prompts, together[:3], strict=True):
        (alone,) = latents_of([prompt], catalogue)
        assert abs(latent - alone).max() < 1e-4
    assert abs(together[0] - together[2]).max() > 1e-3


def drawn_by(seed: int) -> CallDraws:
    return CallDraws(0, torch.Generator().manual_seed(seed))


def merging(unet: Any, ratio: float, x: Tensor, seeds: list[int]) -> Any:
    settings = TokenMerging(ratio)
    changed = variant_of(unet, settings, settings.patch)
    changed.drawn_rows.assign([drawn_by(seed) for seed in seeds], [1] * len(seeds), x)
    return changed


def test_one_place_of_each_square_is_kept() -> None:
    drawn = torch.tensor([[0, 1], [2, 3]])
    # A picture of 4 x 5: what is over at the edge is merged into others as well.
    assert target_positions(drawn, 5).tolist() == [0, 3, 15, 18]


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
    monkeypatch.setattr(attention_reduction, "_LIKENESS_BYTES", 2 * 75 * 4 * 10)
    with LargestTensor() as largest:
        parts = Match.of(hidden, targets, 90)
    assert torch.equal(whole.merged_sources, parts.merged_sources)
    assert torch.equal(whole.merge_targets, parts.merge_targets)
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


def test_a_call_that_is_made_again_draws_the_same() -> None:
    draws = drawn_by(5)
    first = [draws.integers(layer, 4, (3, 2, 1)) for layer in (0, 1)]
    again = [draws.integers(layer, 4, (3, 2, 1)) for layer in (1, 0)]
    assert torch.equal(first[0], again[1])
    assert torch.equal(first[1], again[0])
