"""The nodes of the package, with the names and inputs of ComfyUI's nodes.

API replicas import this module but must not load torch. So modules that need torch are imported
inside the functions.
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
    tooltip="The length of the shorter side of the result, in pixels.",
)
_LINES, _OTHERS = "preprocessors/lines", "preprocessors/others"


def _level(default: int, tooltip: str) -> Int:
    return Int(default, min=0, max=255, tooltip=tooltip)


def _changed(images: ImageShape, made: ImageShape, passes: float) -> Estimate:
    """Return the estimate for images that need `passes` times the work of resizing."""
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
    input_bytes = images.size_bytes + mask.size_bytes
    return Estimate(
        (images,), work=images.megapixels * work.RESAMPLE, scratch_bytes=2 * input_bytes
    )


def _each(context: Context, image: Images, change: Change) -> Work[tuple[Images]]:
    import torch

    from darkroom_preprocessors.planes import Preprocess

    made: list[Images] = []
    for one in image[..., :3].split(1):
        changed: Images = yield Preprocess(one, change, context.device)
        made.append(changed)
    return (torch.cat(made),)


@node(
    "CannyEdgePreprocessor",
    inputs=_IMAGE,
    optional={
        "low_threshold": _level(100, "The smallest gradient of a pixel that continues an edge."),
        "high_threshold": _level(200, "The smallest gradient of an edge."),
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
        "guassian_sigma": Float(6.0, min=0.0, max=100.0, tooltip="The largest width of lines."),
        "intensity_threshold": Int(8, min=0, max=16, tooltip="The smallest difference of a line."),
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
    """Draws lines where images are darker than their surroundings."""
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
        "threshold": Int(32, min=1, max=64, tooltip="The smallest strength of a line."),
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
        "bin_threshold": _level(
            100, "Brighter pixels become white. With 0 and 255 the threshold is computed."
        ),
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
    """Gives each square of 64 pixels one colour."""
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
    """Moves the contents of images at random."""
    from darkroom_preprocessors.colours import shuffled

    return _each(context, image, partial(shuffled, seed=seed, resolution=resolution))


@node(
    "TilePreprocessor",
    inputs=_IMAGE,
    optional={
        "pyrUp_iters": Int(
            3, min=1, max=10, tooltip="How often the size is halved and then doubled."
        ),
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
    pyrUp_iters: int = 3,  # noqa: N803 - graphs use this name
    resolution: int = 512,
) -> Work[tuple[Images]]:
    """Removes the details of images. The resolution is not used."""
    from darkroom_preprocessors.colours import tile

    return _each(context, image, partial(tile, doublings=pyrUp_iters))


@node(
    "InpaintPreprocessor",
    inputs={"image": Link("IMAGE"), "mask": Link("MASK")},
    optional={
        "black_pixel_for_xinsir_cn": Boolean(
            False, tooltip="Mark the area with 0 (black) instead of a value below 0."
        )
    },
    outputs=("IMAGE",),
    category=_OTHERS,
    display_name="Inpaint Preprocessor",
    estimate=_inpaint_estimate,
)
def inpaint(
    context: Context, image: Images, mask: Mask, black_pixel_for_xinsir_cn: bool = False
) -> tuple[Images]:
    """Marks the area that ControlNets for inpainting fill."""
    import torch
    from torch.nn import functional

    # Each image has its own mask. If there are fewer masks, the last mask is repeated.
    masks = mask.reshape(-1, 1, *mask.shape[-2:])
    planes = masks[torch.arange(len(image)).clamp(max=len(masks) - 1)]
    fitted = functional.interpolate(planes, size=image.shape[1:3], mode="bilinear")
    is_masked = fitted.movedim(1, -1) > 0.5
    return (image.masked_fill(is_masked, 0.0 if black_pixel_for_xinsir_cn else -1.0),)
