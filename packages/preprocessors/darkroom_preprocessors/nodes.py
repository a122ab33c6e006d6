"""The declarations, with the names and inputs that people's graphs have.

HTTP replicas import them, so they import torch's side in their bodies.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.batcher import Work
from engine.graph import work
from engine.graph.cost import Estimate, ImageShape, MaskShape
from engine.graph.declarations import Boolean, Float, Int, Link, node

if TYPE_CHECKING:
    from darkroom_preprocessors.planes import Change
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Images, Mask

NODES_API = "1.0"
_MOST_SIDE = 16384
_MOST_SEED = 2**64 - 1
_TILE_CELL = 64
_IMAGE = {"image": Link("IMAGE")}
_RESOLUTION = Int(
    512,
    min=64,
    max=_MOST_SIDE,
    step=64,
    limit="longest_side",
    tooltip="How long the shorter side becomes.",
)
_LINES, _OTHERS = "preprocessors/lines", "preprocessors/others"


def _level(default: int, tooltip: str) -> Int:
    return Int(default, min=0, max=255, tooltip=tooltip)


def _changed(images: ImageShape, made: ImageShape, passes: float) -> Estimate:
    """Images of which others are made, by so many times the work of resizing them."""
    megapixels = max(images.megapixels, made.megapixels)
    scratch = max(images.size_bytes, made.size_bytes) // max(1, images.count)
    return Estimate((made,), work=megapixels * passes * work.RESAMPLE, scratch_bytes=12 * scratch)


def _resized(inputs: Mapping[str, Any]) -> ImageShape:
    images: ImageShape = inputs["image"]
    scale = inputs.get("resolution", _RESOLUTION.default) / min(images.width, images.height)
    return images.scaled(scale)


def _estimate(inputs: Mapping[str, Any]) -> Estimate:
    return _changed(inputs["image"], _resized(inputs), passes=2)


def _blurred_estimate(inputs: Mapping[str, Any]) -> Estimate:
    taps = 8 * inputs.get("guassian_sigma", 6.0) + 1
    return _changed(inputs["image"], _resized(inputs), passes=2 + taps / 20)


def _tile_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    least = 1 << inputs.get("pyrUp_iters", 3)
    sides = (max(least, side + _TILE_CELL) for side in (images.width, images.height))
    return _changed(images, images.sized(*sides), passes=4)


def _inpaint_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    mask: MaskShape = inputs["mask"]
    held = images.size_bytes + mask.size_bytes
    return Estimate((images,), work=images.megapixels * work.RESAMPLE, scratch_bytes=2 * held)


def _each(context: Context, image: Images, change: Change) -> Work[tuple[Images]]:
    """The images that are made of each one."""
    import torch

    from darkroom_preprocessors.planes import Preprocess

    made: list[Images] = []
    for one in image.split(1):
        changed: Images = yield Preprocess(one, change, context.device)
        made.append(changed)
    return (torch.cat(made),)


@node(
    "CannyEdgePreprocessor",
    inputs=_IMAGE,
    optional={
        "low_threshold": _level(100, "Weaker edges are left out."),
        "high_threshold": _level(200, "Stronger edges are kept, with those that touch them."),
        "resolution": _RESOLUTION,
    },
    outputs=("IMAGE",),
    category=_LINES,
    display_name="Canny Edge",
    estimate=_estimate,
)
def canny(
    context: Context,
    *,
    image: Images,
    low_threshold: int = 100,
    high_threshold: int = 200,
    resolution: int = 512,
) -> Work[tuple[Images]]:
    """Draws the edges of images."""
    from darkroom_preprocessors.lines import edges

    change = partial(edges, low=low_threshold, high=high_threshold, resolution=resolution)
    return _each(context, image, change)


@node(
    "LineartStandardPreprocessor",
    inputs=_IMAGE,
    optional={
        "guassian_sigma": Float(6.0, min=0.0, max=100.0, tooltip="How wide the lines may be."),
        "intensity_threshold": Int(8, min=0, max=16, tooltip="What counts as a line at all."),
        "resolution": _RESOLUTION,
    },
    outputs=("IMAGE",),
    category=_LINES,
    display_name="Standard Lineart",
    estimate=_blurred_estimate,
)
def lineart_standard(
    context: Context,
    *,
    image: Images,
    guassian_sigma: float = 6.0,
    intensity_threshold: int = 8,
    resolution: int = 512,
) -> Work[tuple[Images]]:
    """Draws lines where images are darker than around."""
    from darkroom_preprocessors.lines import standard_lines

    change = partial(
        standard_lines, sigma=guassian_sigma, threshold=intensity_threshold, resolution=resolution
    )
    return _each(context, image, change)


@node(
    "ScribblePreprocessor",
    inputs=_IMAGE,
    optional={"resolution": _RESOLUTION},
    outputs=("IMAGE",),
    category=_LINES,
    display_name="Scribble Lines",
    estimate=_estimate,
)
def scribble_lines(context: Context, image: Images, resolution: int = 512) -> Work[tuple[Images]]:
    """Makes images black where they are dark, and white elsewhere."""
    from darkroom_preprocessors.lines import scribble

    return _each(context, image, partial(scribble, resolution=resolution))


@node(
    "Scribble_XDoG_Preprocessor",
    inputs=_IMAGE,
    optional={
        "threshold": Int(32, min=1, max=64, tooltip="Weaker lines are left out."),
        "resolution": _RESOLUTION,
    },
    outputs=("IMAGE",),
    category=_LINES,
    display_name="Scribble XDoG Lines",
    estimate=_blurred_estimate,
)
def scribble_xdog(
    context: Context, image: Images, threshold: int = 32, resolution: int = 512
) -> Work[tuple[Images]]:
    """Draws lines by the difference of two blurs."""
    from darkroom_preprocessors.lines import difference_lines

    change = partial(difference_lines, threshold=threshold, resolution=resolution)
    return _each(context, image, change)


@node(
    "BinaryPreprocessor",
    inputs=_IMAGE,
    optional={
        "bin_threshold": _level(100, "What is brighter is white. 0 and 255: found by itself."),
        "resolution": _RESOLUTION,
    },
    outputs=("IMAGE",),
    category=_LINES,
    display_name="Binary Lines",
    estimate=_estimate,
)
def binary_lines(
    context: Context, image: Images, bin_threshold: int = 100, resolution: int = 512
) -> Work[tuple[Images]]:
    """Makes images black and white."""
    from darkroom_preprocessors.lines import binary

    change = partial(binary, threshold=bin_threshold, resolution=resolution)
    return _each(context, image, change)


@node(
    "ColorPreprocessor",
    inputs=_IMAGE,
    optional={"resolution": _RESOLUTION},
    outputs=("IMAGE",),
    category=_OTHERS,
    display_name="Color Palette",
    estimate=_estimate,
)
def color_palette(context: Context, image: Images, resolution: int = 512) -> Work[tuple[Images]]:
    """Leaves a colour for each square of 64 pixels."""
    from darkroom_preprocessors.colours import palette

    return _each(context, image, partial(palette, resolution=resolution))


@node(
    "ShufflePreprocessor",
    inputs=_IMAGE,
    optional={"resolution": _RESOLUTION, "seed": Int(0, min=0, max=_MOST_SEED)},
    outputs=("IMAGE",),
    category=_OTHERS,
    display_name="Content Shuffle",
    estimate=_estimate,
)
def content_shuffle(
    context: Context, image: Images, resolution: int = 512, seed: int = 0
) -> Work[tuple[Images]]:
    """Moves the contents of images about, and keeps their colours."""
    from darkroom_preprocessors.colours import shuffled

    return _each(context, image, partial(shuffled, seed=seed, resolution=resolution))


@node(
    "TilePreprocessor",
    inputs=_IMAGE,
    optional={
        "pyrUp_iters": Int(3, min=1, max=10, tooltip="How often it is halved, then doubled."),
        "resolution": _RESOLUTION,
    },
    outputs=("IMAGE",),
    category=_OTHERS,
    display_name="Tile",
    estimate=_tile_estimate,
)
def tiles(
    context: Context,
    image: Images,
    pyrUp_iters: int = 3,  # noqa: N803 - the name that graphs have
    resolution: int = 512,
) -> Work[tuple[Images]]:
    """Takes the details out of images; the resolution is accepted and not used."""
    from darkroom_preprocessors.colours import tile

    return _each(context, image, partial(tile, doublings=pyrUp_iters))


@node(
    "InpaintPreprocessor",
    inputs={"image": Link("IMAGE"), "mask": Link("MASK")},
    optional={"black_pixel_for_xinsir_cn": Boolean(False, tooltip="Black, and not below it.")},
    outputs=("IMAGE",),
    category=_OTHERS,
    display_name="Inpaint Preprocessor",
    estimate=_inpaint_estimate,
)
def inpaint(
    context: Context, image: Images, mask: Mask, black_pixel_for_xinsir_cn: bool = False
) -> tuple[Images]:
    """Marks what ControlNets for inpainting are to fill."""
    import torch
    from torch.nn import functional

    # The images take one each, and those that are left the last.
    masks = mask.reshape(-1, 1, *mask.shape[-2:])
    planes = masks[torch.arange(len(image)).clamp(max=len(masks) - 1)]
    fitted = functional.interpolate(planes, size=image.shape[1:3], mode="bilinear")
    is_masked = fitted.movedim(1, -1) > 0.5
    return (image.masked_fill(is_masked, 0.0 if black_pixel_for_xinsir_cn else -1.0),)
