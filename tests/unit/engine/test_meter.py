"""The limits of a graph, held with the sizes that its values turn out to have."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine.errors import InputFileUnavailable, TooLarge
from engine.graph.catalogue import Catalogue
from engine.graph.cost import (
    ConditioningShape,
    ImageShape,
    LatentShape,
    MaskShape,
    Shape,
    SigmasShape,
    TransparentImageShape,
)
from engine.graph.limits import Limits
from engine.meter import Meter, measured
from tests.support.engine.engines import running
from tests.support.engine.graphs import catalogue_of, graph_of
from tests.support.engine.workflows import node
from tests.support.uploads import png

LOADED = {
    "load": node("LoadImage", image="a.png"),
    "save": node("SaveImage", images=["load", 0], filename_prefix=""),
}
ENLARGED = {
    "model": node("UpscaleModelLoader", model_name="any.safetensors"),
    "small": node("EmptyImage", width=500, height=500, batch_size=1, color=0),
    "large": node("ImageUpscaleWithModel", upscale_model=["model", 0], image=["small", 0]),
    "save": node("SaveImage", images=["large", 0], filename_prefix=""),
}


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    return catalogue_of(tmp_path, "upscale_models/any.safetensors")


def images(count: int, width: int, height: int) -> Any:
    return np.broadcast_to(np.float32(0), (count, height, width, 3))


def masks(count: int, width: int, height: int) -> Any:
    return np.broadcast_to(np.float32(0), (count, height, width))


def test_an_upload_is_counted_with_its_size(catalogue: Catalogue) -> None:
    graph = graph_of(LOADED, catalogue)
    small, large = (Meter(graph, Limits(max_cost=10.0)) for _ in range(2))
    for meter, side in ((small, 1000), (large, 2000)):
        meter.start(graph.node("load"))
        meter.end(graph.node("load"), (images(1, side, side), masks(1, side, side)))
    small.start(graph.node("save"))
    with pytest.raises(TooLarge, match=r"node save \(SaveImage\): the job costs 17 .*10"):
        large.start(graph.node("save"))


def test_bytes_are_counted_once_they_are_there(catalogue: Catalogue) -> None:
    graph = graph_of(LOADED, catalogue)
    meter = Meter(graph, Limits(max_live_bytes=12_000_000))
    room = graph.overlap_bytes
    side = int(((12_000_000 + room) / 12) ** 0.5)
    meter.start(graph.node("load"))
    with pytest.raises(TooLarge, match=r"node load \(LoadImage\): at this node the job needs"):
        meter.end(graph.node("load"), (images(1, side + 1, side + 1), masks(1, 64, 64)))


def test_an_upscale_model_is_counted_with_its_factor(catalogue: Catalogue) -> None:
    graph = graph_of(ENLARGED, catalogue)
    assert graph.cost.work == pytest.approx(5 + 0.025 + 2 + 4 * 4)
    meter = Meter(graph, Limits(max_cost=30.0))
    for name, made in (
        ("small", images(1, 500, 500)),
        ("model", SimpleNamespace(scale=8)),
        ("large", images(1, 4000, 4000)),
    ):
        meter.start(graph.node(name))
        meter.end(graph.node(name), (made,))
    with pytest.raises(TooLarge, match=r"node save \(SaveImage\): the job costs 71 "):
        meter.start(graph.node("save"))


@pytest.mark.parametrize(
    ("value", "estimated", "found"),
    [
        (images(3, 20, 10), ImageShape(1, 512, 512), ImageShape(3, 20, 10)),
        (
            np.zeros((3, 10, 20, 4)),
            ImageShape(1, 512, 512, 7),
            TransparentImageShape(3, 20, 10, 7),
        ),
        (images(1, 20, 10), TransparentImageShape(1, 20, 10), ImageShape(1, 20, 10)),
        (masks(2, 20, 10), MaskShape(1, 512, 512), MaskShape(2, 20, 10)),
        (masks(2, 20, 10)[:, None], MaskShape(1, 512, 512), MaskShape(2, 20, 10)),
        (masks(1, 20, 10)[0], MaskShape(1, 512, 512), MaskShape(1, 20, 10)),
        (
            SimpleNamespace(samples=np.zeros((2, 4, 8, 16)), noise_mask=None),
            LatentShape(1, 512, 512),
            LatentShape(2, 128, 64),
        ),
        (
            [SimpleNamespace(tokens=np.zeros((1, n, 8))) for n in (77, 154)],
            ConditioningShape(1, 77),
            ConditioningShape(1, 154, texts=2),
        ),
        (SimpleNamespace(values=np.zeros(5)), SigmasShape(20), SigmasShape(4)),
        (SimpleNamespace(scale=2), 4, 2),
        ("euler", "euler", "euler"),
        (object(), None, None),
    ],
)
def test_a_value_has_the_shape_that_it_has(value: Any, estimated: Shape, found: Shape) -> None:
    assert measured(value, estimated) == found


def test_a_run_that_goes_beyond_a_limit_ends_at_once(tmp_path: Path) -> None:
    files, limits = {"a.png": png(size=(2000, 1000))}, Limits(max_cost=6.0)
    with running(tmp_path) as engine:
        error = engine.submit(LOADED, input_files=files, limits=limits).error(TooLarge)
    assert "node save (SaveImage): the job costs 9 megapixel-steps or more" in str(error)


def test_what_a_node_cannot_read_or_make_is_an_error_with_its_name(tmp_path: Path) -> None:
    files, limits = {"a.png": png(size=(2000, 1000))}, Limits(max_pixels=1_000_000)
    with running(tmp_path) as engine:
        error = engine.submit(LOADED, input_files=files, limits=limits).error(TooLarge)
        missing = engine.submit(LOADED).error(InputFileUnavailable)
    assert str(error).startswith("node load (LoadImage): A batch of 1 images of 2000 x 1000")
    assert str(missing) == "node load (LoadImage): There is no input file 'a.png'."
