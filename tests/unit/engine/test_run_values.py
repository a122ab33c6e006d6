"""Values that only a run tells are held to the ranges of the inputs that they come to."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from engine.engine import Engine
from engine.errors import NodeFailed
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.reports import Errored
from tests.support.engine.workflows import Watched, node, text_to_image

SMALL = node("EmptyImage", width=20, height=8, batch_size=1, color=0)


@pytest.fixture
def engine(tmp_path: Path) -> Generator[Engine]:
    engine = Engine(models=ModelsFolder(tmp_path))
    engine.start()
    yield engine
    engine.stop()


def run(engine: Engine, prompt: Any, folder: Path) -> Watched:
    watched = Watched()
    graph = validate(prompt, Catalogue(ModelsFolder(folder)), Limits())
    engine.submit(graph, on_event=watched.take)
    return watched


def scaled(**size: Any) -> dict[str, Any]:
    inputs = {"image": ["1", 0], "upscale_method": "area", "width": 8, "height": 8} | size
    return {
        "1": SMALL,
        "2": node("GetImageSize", image=["1", 0]),
        "3": node("ImageScale", **inputs, crop="disabled"),
        "4": node("SaveImage", images=["3", 0], filename_prefix="x"),
    }


def test_a_size_is_used(engine: Engine, tmp_path: Path) -> None:
    (image,) = run(engine, scaled(width=["2", 1], height=["2", 0]), tmp_path).images()
    assert image.pixels.shape == (20, 8, 3)


def test_its_range_holds(engine: Engine, tmp_path: Path) -> None:
    prompt = scaled()
    prompt["3"] = node("ImageBlur", image=["1", 0], blur_radius=["2", 0], sigma=1.0)
    prompt["1"] = node("EmptyImage", width=40, height=40, batch_size=1, color=0)
    end = run(engine, prompt, tmp_path).wait()
    assert isinstance(end, Errored)
    assert isinstance(end.error, NodeFailed)
    assert str(end.error) == "node 3 (ImageBlur): blur_radius is 40, and must be 1 to 31"


def test_a_check_that_needs_the_value_waits_for_it(empty_catalogue: Catalogue) -> None:
    """KSampler's check reads the steps, which are not there before the run."""
    prompt = text_to_image(steps=["2", 0]) | {
        "1": SMALL,
        "2": node("GetImageSize", image=["1", 0]),
    }
    graph = validate(prompt, empty_catalogue, Limits())
    assert "steps" not in graph.node("3").literals
    assert graph.cost.work > validate(text_to_image(), empty_catalogue, Limits()).cost.work
