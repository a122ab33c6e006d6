"""Jobs of transformers that differ in sampler, steps, guidance and length of text share calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine.reports import Finished
from tests.support.engine.transformer_graphs import flux_graph, z_image_graph
from tests.support.engine.workflows import Watched

_SAMPLERS = ("euler", "heun", "dpmpp_2m", "euler_ancestral", "res_multistep", "dpmpp_sde")
_TEXT = "a red square beside two green circles on a long blue line in the evening sun"
_WORDS = _TEXT.split(" ")


def _job(at: int) -> dict[str, Any]:
    return z_image_graph(
        " ".join(_WORDS[: 1 + at]),
        seed=at,
        steps=3 + at % 3,
        cfg=1.5 + at % 3,
        shift=2.0 + at % 2,
        sampler_name=_SAMPLERS[at % len(_SAMPLERS)],
    )


def test_sixteen_mixed_jobs_share_calls_and_have_the_pictures_that_they_have_alone(
    start: Callable[..., Watched],
) -> None:
    alone = [start(_job(at)).images()[0].pixels for at in range(16)]
    watched = [start(_job(at)) for at in range(16)]
    shared = [each.images()[0].pixels for each in watched]
    differences = [
        np.abs(one.astype(int) - other).max() for one, other in zip(alone, shared, strict=True)
    ]
    assert max(differences) <= 1
    ends = [each.events[-1] for each in watched]
    rows = [end.rows_per_call for end in ends if isinstance(end, Finished)]
    assert sum(rows) / len(rows) >= 12


def test_texts_of_different_length_of_flux_share_a_call(start: Callable[..., Watched]) -> None:
    long = " ".join(_WORDS * 8)
    (alone,) = start(flux_graph("a cat", steps=2)).images()
    first, second = start(flux_graph("a cat", steps=2)), start(flux_graph(long, steps=2))
    pixels, _ = (each.images()[0].pixels for each in (first, second))
    assert np.abs(pixels.astype(int) - alone.pixels).max() <= 1


@pytest.mark.parametrize("name", ["z_image", "flux"])
def test_an_odd_latent_is_continued_to_whole_patches(
    start: Callable[..., Watched], name: str
) -> None:
    graph = z_image_graph(steps=1) if name == "z_image" else flux_graph(steps=1)
    graph["6"]["inputs"]["width"] = 72
    assert start(graph).images()[0].pixels.shape == (64, 72, 3)
