"""The limits of a graph, held with the sizes that its values turn out to have."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from engine.engine import Engine
from engine.errors import TooLarge
from engine.graph.catalogue import Catalogue
from engine.graph.cost import (
    ConditioningShape,
    ImageShape,
    LatentShape,
    MaskShape,
    Shape,
    SigmasShape,
)
from engine.graph.graph import Graph
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.meter import Meter, measured
from engine.reports import Errored
from tests.support.engine.workflows import Watched, node


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    (tmp_path / "upscale_models").mkdir()
    (tmp_path / "upscale_models" / "any.safetensors").touch()
    return Catalogue(ModelsFolder(tmp_path))


def graph_of(catalogue: Catalogue, **nodes: dict[str, Any]) -> Graph:
    return validate(nodes, catalogue, Limits())


def loaded(catalogue: Catalogue) -> Graph:
    return graph_of(
        catalogue,
        load=node("LoadImage", image="a.png"),
        save=node("SaveImage", images=["load", 0], filename_prefix=""),
    )


def enlarged(catalogue: Catalogue) -> Graph:
    return graph_of(
        catalogue,
        model=node("UpscaleModelLoader", model_name="any.safetensors"),
        small=node("EmptyImage", width=500, height=500, batch_size=1, color=0),
        large=node("ImageUpscaleWithModel", upscale_model=["model", 0], image=["small", 0]),
        save=node("SaveImage", images=["large", 0], filename_prefix=""),
    )


def images(count: int, width: int, height: int) -> Any:
    return np.broadcast_to(np.float32(0), (count, height, width, 3))


def masks(count: int, width: int, height: int) -> Any:
    return np.broadcast_to(np.float32(0), (count, height, width))


def test_an_upload_is_counted_with_its_size(catalogue: Catalogue) -> None:
    graph = loaded(catalogue)
    for side, beyond in ((1000, False), (2000, True)):
        meter = Meter(graph, Limits(max_cost=10.0))
        meter.start(graph.node("load"))
        meter.end(graph.node("load"), (images(1, side, side), masks(1, side, side)))
        if beyond:
            with pytest.raises(TooLarge, match=r"node save \(SaveImage\): the job costs 17 .*10"):
                meter.start(graph.node("save"))
        else:
            meter.start(graph.node("save"))


def test_bytes_are_counted_once_they_are_there(catalogue: Catalogue) -> None:
    graph = loaded(catalogue)
    meter = Meter(graph, Limits(max_live_bytes=12_000_000))
    room = graph.overlap_bytes
    side = int(((12_000_000 + room) / 12) ** 0.5)
    meter.start(graph.node("load"))
    with pytest.raises(TooLarge, match=r"node load \(LoadImage\): the job holds"):
        meter.end(graph.node("load"), (images(1, side + 1, side + 1), masks(1, 64, 64)))


def test_an_upscale_model_is_counted_with_its_factor(catalogue: Catalogue) -> None:
    graph = enlarged(catalogue)
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


@pytest.mark.parametrize(
    ("of_engine", "of_run"), [(6.0, None), (2000.0, 6.0)], ids=["engine", "run"]
)
def test_a_run_that_goes_beyond_a_limit_ends_at_once(
    catalogue: Catalogue, of_engine: float, of_run: float | None
) -> None:
    out = io.BytesIO()
    Image.new("RGB", (2000, 1000)).save(out, "PNG")
    own = None if of_run is None else Limits(max_cost=of_run)
    engine = Engine(models=catalogue.models, limits=Limits(max_cost=of_engine))
    engine.start()
    try:
        watched = Watched()
        files = {"a.png": out.getvalue()}
        engine.submit(loaded(catalogue), on_event=watched.take, input_files=files, limits=own)
        end = watched.wait()
    finally:
        engine.stop()
    assert isinstance(end, Errored)
    assert isinstance(end.error, TooLarge)
    assert "node save (SaveImage): the job costs 9 megapixel-steps or more" in str(end.error)
