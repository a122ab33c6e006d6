from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from engine.errors import EngineError
from tests.support.engine.bodies import outputs_of


def mask(height: int = 9, width: int = 12, count: int = 2, seed: int = 1) -> Tensor:
    return torch.rand(count, height, width, generator=torch.Generator().manual_seed(seed))


def reached(given: Tensor, by: int, *, tapered: bool) -> Tensor:
    """The largest value within a square or a diamond of that radius, by its definition."""
    found = torch.zeros_like(given)
    _, height, width = given.shape
    for y, x in product(range(height), range(width)):
        near = [
            given[:, b, a]
            for b, a in product(range(height), range(width))
            if (abs(a - x) + abs(b - y) if tapered else max(abs(a - x), abs(b - y))) <= by
        ]
        found[:, y, x] = torch.stack(near).amax(0)
    return found


@pytest.mark.parametrize("tapered", [True, False])
@pytest.mark.parametrize("by", [0, 1, 2, 3, 5, 8, 11, 40, 16384])
def test_a_mask_grows_and_shrinks(by: int, tapered: bool) -> None:
    given = mask()
    (grown,) = outputs_of("GrowMask", mask=given, expand=by, tapered_corners=tapered)
    assert torch.equal(grown, reached(given, by, tapered=tapered))
    (shrunk,) = outputs_of("GrowMask", mask=given, expand=-by, tapered_corners=tapered)
    assert torch.allclose(shrunk, 1 - reached(1 - given, by, tapered=tapered))


def test_what_is_given_stays_as_it_is() -> None:
    given, other = mask(), mask(seed=2)
    before = given.clone()
    for operation in ("multiply", "add", "subtract", "and", "or", "xor"):
        inputs = {"destination": given, "source": other, "x": 3, "y": 1, "operation": operation}
        outputs_of("MaskComposite", **inputs)
    outputs_of("GrowMask", mask=given, expand=3, tapered_corners=True)
    outputs_of("FeatherMask", mask=given, left=3, top=3, right=3, bottom=3)
    assert torch.equal(given, before)


def test_a_mask_outside_of_another_changes_nothing() -> None:
    given = mask()
    inputs = {"destination": given, "source": mask(), "x": 500, "y": 0, "operation": "add"}
    assert torch.equal(outputs_of("MaskComposite", **inputs)[0], given)


def test_a_crop_outside_is_an_error() -> None:
    with pytest.raises(EngineError, match="lies outside"):
        outputs_of("CropMask", mask=mask(), x=12, y=0, width=4, height=4)


def test_two_masks_do_not_go_over_three() -> None:
    three = mask(count=3)
    inputs = {"destination": three, "source": mask(), "x": 0, "y": 0, "operation": "add"}
    with pytest.raises(EngineError, match="2 masks go over one or as many, not over 3"):
        outputs_of("MaskComposite", **inputs)


def test_a_colour_is_masked() -> None:
    images = torch.zeros(1, 2, 2, 3)
    images[0, 0, 1] = torch.tensor([1.0, 128 / 255, 0.0])
    (found,) = outputs_of("ImageColorToMask", image=images, color=0xFF8000)
    assert found.tolist() == [[[0.0, 1.0], [0.0, 0.0]]]
