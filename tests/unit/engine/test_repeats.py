"""The same graph again, one after the other and at once, on one engine."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.reports import ImageReady
from engine.webui.compiler import compile_parameters
from engine.webui.parameters import parse_parameters
from tests.support.engine.workflows import TINY, Watched, text_to_image

Submit = Callable[..., Watched]


def assert_same(one: list[ImageReady], other: list[ImageReady]) -> None:
    assert [(image.index, image.seed) for image in one] == [
        (image.index, image.seed) for image in other
    ]
    for left, right in zip(one, other, strict=True):
        assert np.abs(left.pixels.astype(int) - right.pixels.astype(int)).max() <= 1


@pytest.mark.parametrize("sampler", ["euler_ancestral", "dpmpp_2m_sde"])
def test_the_same_graph_again_gives_the_same_images_all_of_them(
    submit: Submit, sampler: str
) -> None:
    graph = text_to_image(sampler_name=sampler)
    first = submit(graph).images()
    second = submit(graph).images()
    assert len(first) == len(second) == 1
    assert_same(first, second)


def test_the_same_request_at_once_gives_each_its_images(
    submit: Submit, catalogue: Catalogue
) -> None:
    body = {"prompt": "a [red|blue] circle", "seed": 3, "steps": 3, "batch_size": 2}
    size = {"width": 64, "height": 64, "enable_hr": True, "hr_scale": 1.5}
    compiled = compile_parameters(
        parse_parameters(body | size), catalogue, Limits(), default_checkpoint=TINY
    )
    runs = [submit(compiled.prompt, first_index=compiled.first_index) for _ in range(3)]
    one, *others = [run.images() for run in runs]
    assert [(image.index, image.seed) for image in one] == [(0, 3), (1, 4)]
    assert all(image.pixels.shape == (96, 96, 3) for image in one)
    for other in others:
        assert_same(one, other)
