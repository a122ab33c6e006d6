"""Self-attention in tiles: how a picture is cut, and that each job is cut as it would be alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.diffusion.loading.attention import use_plain_attention
from engine.diffusion.patches.call_draws import CallDraws
from engine.diffusion.patches.hyper_tile import HyperTile, TiledAttention, sides_of
from engine.diffusion.patches.variants import variant_of
from engine.graph.catalogue import Catalogue
from tests.support.engine.latents import all_latents_and_images
from tests.support.engine.tiny_unet import answer_of, tiny_unet
from tests.support.engine.workflows import node, text_to_image


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def unet() -> Any:
    return use_plain_attention(tiny_unet())


def tiled(unet: Any, **changes: Any) -> Any:
    settings = HyperTile(
        **({"tile_size": 32, "swap_size": 1, "max_depth": 0, "scale_depth": False} | changes)
    )
    return variant_of(unet, settings, settings.patch)


def told(unet: Any, x: Tensor, calls: list[int]) -> Any:
    draws = [CallDraws(number, torch.Generator()) for number in calls]
    unet.drawn_rows.tell(draws, [1] * len(calls), x)
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
        own = layer.compared(picture[rows, columns].reshape(1, 16, 8), key[:, part], value[:, part])
        found[rows, columns] = own.view(4, 4, 8)
    assert torch.allclose(layer(hidden), layer.output(found.view(1, 64, 8)), atol=1e-6)


def test_only_the_levels_that_are_asked_for_are_cut(unet: Any) -> None:
    def count(depth: int) -> int:
        layers = tiled(unet, max_depth=depth).modules()
        return sum(isinstance(each, TiledAttention) for each in layers)

    assert [count(depth) for depth in range(4)] == [5, 10, 16, 16]


def test_tiles_as_large_as_the_picture_change_nothing(unet: Any) -> None:
    x = torch.randn(2, 4, 8, 12)
    whole = told(tiled(unet, tile_size=2048, max_depth=3, scale_depth=True), x, [0, 5])
    assert torch.allclose(answer_of(whole, x), answer_of(unet, x), atol=1e-5)


def test_rows_of_other_calls_are_cut_as_they_are_alone(unet: Any) -> None:
    x = torch.randn(2, 4, 16, 24)
    changed = tiled(unet, swap_size=3, max_depth=2)
    together = answer_of(told(changed, x, [0, 7]), x)
    tokens = torch.randn((2, 77, 16), generator=torch.Generator().manual_seed(2))
    for row, call in enumerate((0, 7)):
        one = x[row : row + 1]
        times = torch.tensor([[999], [10]])[row]
        alone = told(changed, one, [call])(one, times, tokens[row : row + 1], return_dict=False)[0]
        assert torch.allclose(together[row], alone[0], atol=1e-5)


def prompt(seed: int, steps: int, **settings: Any) -> dict[str, Any]:
    given = {"tile_size": 32, "swap_size": 2, "max_depth": 1, "scale_depth": False} | settings
    made = text_to_image(model=["m", 0], seed=seed, steps=steps)
    made["5"]["inputs"] |= {"width": 128, "height": 64}
    return made | {"m": node("HyperTile", model=["4", 0], **given)}


def test_jobs_at_once_give_what_each_gives_alone(catalogue: Catalogue) -> None:
    prompts = [prompt(1, 3), prompt(2, 2), text_to_image(steps=2)]
    together = all_latents_and_images(prompts, catalogue)
    for each, (latent, _) in zip(prompts, together, strict=True):
        ((alone, _),) = all_latents_and_images([each], catalogue)
        assert abs(latent - alone).max() < 1e-4
    plain = prompt(1, 3, tile_size=2048)
    ((untiled, _),) = all_latents_and_images([plain], catalogue)
    assert abs(together[0][0] - untiled).max() > 1e-3
