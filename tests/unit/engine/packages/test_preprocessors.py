"""The package of preprocessors, installed and run: what each makes of simple pictures."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.extensions import Extension
from tests.support.engine.bodies import driven
from tests.support.engine.engines import running
from tests.support.engine.extensions import ROOT, installed
from tests.support.engine.graphs import refusal_of
from tests.support.engine.workflows import node, with_input

Made = Callable[..., Tensor]
SIDE = 128
LINES = (
    "CannyEdgePreprocessor",
    "LineartStandardPreprocessor",
    "ScribblePreprocessor",
    "Scribble_XDoG_Preprocessor",
    "BinaryPreprocessor",
)
OTHERS = ("ColorPreprocessor", "ShufflePreprocessor", "TilePreprocessor")


@pytest.fixture(scope="module")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Extension]:
    package = ROOT / "packages" / "preprocessors"
    with installed(package, tmp_path_factory.mktemp("preprocessors")) as found:
        yield found


@pytest.fixture(scope="module")
def made(extension: Extension) -> Made:
    """What a node makes of an image (height, width, 3) of 0..1, in levels of 0..255."""
    bodies = {each.class_type: each.body for each in extension.node_types}

    class OnCpu:
        device = torch.device("cpu")

    def made(class_type: str, image: Tensor, **inputs: Any) -> Tensor:
        work = bodies[class_type](OnCpu(), image=image[None], **inputs)
        (found,) = driven(work) if isinstance(work, Generator) else work
        levels: Tensor = found[0] * 255.0
        return levels.round()

    return made


@pytest.mark.parametrize("class_type", [*LINES, *OTHERS])
def test_opacities_are_left_out(class_type: str, made: Made) -> None:
    image = torch.rand(SIDE, SIDE, 3, generator=torch.Generator().manual_seed(0))
    transparent = torch.cat([image, torch.zeros(SIDE, SIDE, 1)], dim=-1)
    assert torch.equal(made(class_type, transparent), made(class_type, image))


def square(inside: float, outside: float) -> Tensor:
    image = torch.full((SIDE, SIDE, 3), outside)
    image[32:96, 32:96] = inside
    return image


def test_edges_are_those_of_a_square(made: Made) -> None:
    found = made("CannyEdgePreprocessor", square(1.0, 0.0), resolution=SIDE)[..., 0]
    assert set(found.unique().tolist()) == {0.0, 255.0}
    rows, columns = found.nonzero(as_tuple=True)
    assert {int(rows.min()), int(columns.min())} <= {31, 32}
    assert {int(rows.max()), int(columns.max())} <= {95, 96}
    assert not found[40:88, 40:88].any()
    assert not made("CannyEdgePreprocessor", square(0.5, 0.5), resolution=SIDE).any()


def test_weak_edges_stay_where_they_touch_strong_ones(made: Made) -> None:
    image = square(0.12, 0.0)
    faint = made("CannyEdgePreprocessor", image, resolution=SIDE)
    image[64:, 64:] *= 5.0
    joined = made("CannyEdgePreprocessor", image, resolution=SIDE)
    assert not faint.any()
    assert joined[31, 40:60].any()


def test_lines_are_where_an_image_is_darker_than_around(made: Made) -> None:
    image = torch.ones(SIDE, SIDE, 3)
    image[60:64] = 0.1
    for class_type in ("LineartStandardPreprocessor", "Scribble_XDoG_Preprocessor"):
        found = made(class_type, image, resolution=SIDE)[..., 0]
        assert float(found[62].min()) > 100
        assert not found[20].any()
    scribble = made("ScribblePreprocessor", image, resolution=SIDE)[..., 0]
    assert [float(scribble[62, 0]), float(scribble[20, 0])] == [0.0, 255.0]


def test_a_threshold_separates_dark_from_bright(made: Made) -> None:
    image = square(0.3, 0.2)
    fixed = made("BinaryPreprocessor", image, bin_threshold=100, resolution=SIDE)
    found = made("BinaryPreprocessor", image, bin_threshold=0, resolution=SIDE)
    assert not fixed.any()
    assert torch.equal(found == 255.0, image > 0.25)


def test_a_palette_has_a_colour_for_each_square(made: Made) -> None:
    image = torch.zeros(SIDE, SIDE, 3)
    image[:64, :64] = torch.tensor([1.0, 0.0, 0.0])
    found = made("ColorPreprocessor", image, resolution=SIDE)
    for rows in (slice(0, 64), slice(64, 128)):
        for columns in (slice(0, 64), slice(64, 128)):
            assert len(found[rows, columns].reshape(-1, 3).unique(dim=0)) == 1
    assert float(found[0, 0, 0]) > 200
    assert float(found[127, 127, 0]) < 50


def test_a_tile_keeps_colours_and_loses_details(made: Made) -> None:
    grey = made("TilePreprocessor", torch.full((130, 70, 3), 0.4))
    assert grey.shape == (128, 64, 3)
    assert set(grey.unique().tolist()) == {102.0}
    checks = ((torch.arange(SIDE)[:, None] + torch.arange(SIDE)) % 2).float()
    fine = made("TilePreprocessor", checks[..., None].expand(-1, -1, 3))
    assert float(fine.max() - fine.min()) <= 2
    assert made("TilePreprocessor", square(1.0, 0.0), pyrUp_iters=10).shape == (1024, 1024, 3)


def test_contents_are_shuffled_by_their_seed(made: Made) -> None:
    one, same, other = (
        made("ShufflePreprocessor", square(1.0, 0.0), seed=seed, resolution=SIDE)
        for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert 0 < float(one.mean()) < 255


def test_the_shorter_side_gets_the_resolution(made: Made) -> None:
    image = torch.rand(60, 90, 3, generator=torch.Generator().manual_seed(1))
    for class_type in (*LINES, "ColorPreprocessor", "ShufflePreprocessor"):
        assert made(class_type, image, resolution=128).shape == (128, 192, 3)
        assert made(class_type, image, resolution=64).shape == (64, 96, 3)


def test_a_smaller_image_has_the_means_of_areas(extension: Extension) -> None:
    planes = import_module("darkroom_preprocessors.planes")
    ramp = torch.arange(12.0).expand(1, 6, 12) * 20
    expected = ramp.reshape(1, 2, 3, 4, 3).mean((2, 4)).round()
    assert torch.equal(planes.by_area(ramp, 4, 2), expected)
    assert torch.equal(
        planes.by_area(ramp, 24, 12), ramp.repeat_interleave(2, 1).repeat_interleave(2, 2)
    )


def test_what_is_to_be_filled_is_marked(made: Made) -> None:
    mask = torch.zeros(1, 8, 8)
    mask[:, :4] = 1.0
    image = torch.full((SIDE, SIDE, 3), 0.4)
    for black, value in ((False, -255.0), (True, 0.0)):
        inputs = {"mask": mask, "black_pixel_for_xinsir_cn": black}
        found = made("InpaintPreprocessor", image, **inputs)
        assert float(found[0, 0, 0]) == value
        assert float(found[-1, 0, 0]) == 102.0


@pytest.mark.parametrize(("images", "masks"), [(1, 3), (3, 2), (3, 1)])
def test_each_image_takes_one_mask(extension: Extension, images: int, masks: int) -> None:
    bodies = {each.class_type: each.body for each in extension.node_types}
    mask = torch.ones(masks, 8, 8)
    mask[0] = 0.0
    (found,) = bodies["InpaintPreprocessor"](None, image=torch.ones(images, 8, 8, 3), mask=mask)
    filled = [masks > 1 and at > 0 for at in range(images)]
    assert [bool(each.min() < 0) for each in found] == filled


def graph(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {
        "1": node("EmptyImage", width=80, height=72, batch_size=2, color=0x336699),
        "2": node(class_type, image=["1", 0], **inputs),
        "3": node("SaveImage", images=["2", 0], filename_prefix="x"),
    }


def test_all_of_them_run_in_graphs(extension: Extension, tmp_path: Path) -> None:
    with running(tmp_path, extension.node_types) as engine:
        watched = [engine.submit(graph(each, resolution=64)) for each in (*LINES, *OTHERS)]
        pictures = [each.images() for each in watched]
    assert all(np.array_equal(one.pixels, other.pixels) for one, other in pictures)
    wide = with_input(graph("BinaryPreprocessor", resolution=4096), "1", width=2048, height=16)
    refusal = refusal_of(wide, engine.catalogue, max_live_bytes=2**31)
    assert "costs too much" in str(refusal)
