"""Nodes that filter images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.batcher import Work
from engine.graph import work
from engine.graph.cost import Estimate, ImageShape
from engine.graph.declarations import Choice, Float, Int, Link, node

if TYPE_CHECKING:
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Images

_COPIES = 4
_DITHERS = ("none", "floyd-steinberg", "bayer-2", "bayer-4", "bayer-8", "bayer-16")


def _threshold(default: float, tooltip: str) -> Float:
    return Float(default, min=0.01, max=0.99, tooltip=tooltip)


def _filtered(images: ImageShape, factor: float) -> Estimate:
    return Estimate(
        (images,), work=images.megapixels * factor, scratch_bytes=_COPIES * images.size_bytes
    )


def _blur_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return _filtered(inputs["image"], _kernel_work(inputs["blur_radius"]))


def _sharpen_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return _filtered(inputs["image"], _kernel_work(inputs["sharpen_radius"]))


def _kernel_work(radius: int) -> float:
    """That of a pixel, which is added up along its row, then along its column."""
    return work.COPY * 2 * (2 * radius + 1)


def _canny_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return _filtered(inputs["image"], work.FILE)


def _quantize_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return _filtered(inputs["image"], work.FILE)


@node(
    "ImageBlur",
    inputs={
        "image": Link("IMAGE"),
        "blur_radius": Int(1, min=1, max=31, tooltip="In pixels."),
        "sigma": Float(1.0, min=0.1, max=10.0, step=0.1, tooltip="As a part of the radius."),
    },
    outputs=("IMAGE",),
    category="image/postprocessing",
    estimate=_blur_estimate,
)
def image_blur(
    context: Context, image: Images, blur_radius: int, sigma: float
) -> Work[tuple[Images]]:
    """Blurs images."""
    from engine.diffusion.images import filters

    return ((yield from filters.blurred(image, blur_radius, sigma)),)


@node(
    "ImageSharpen",
    inputs={
        "image": Link("IMAGE"),
        "sharpen_radius": Int(1, min=1, max=31, tooltip="In pixels."),
        "sigma": Float(1.0, min=0.1, max=10.0, tooltip="As a part of the radius."),
        "alpha": Float(1.0, min=0.0, max=5.0, tooltip="How much."),
    },
    outputs=("IMAGE",),
    category="image/postprocessing",
    estimate=_sharpen_estimate,
)
def image_sharpen(
    context: Context, image: Images, *, sharpen_radius: int, sigma: float, alpha: float
) -> Work[tuple[Images]]:
    """Sharpens images."""
    from engine.diffusion.images import filters

    return ((yield from filters.sharpened(image, sharpen_radius, sigma, strength=alpha)),)


@node(
    "ImageQuantize",
    inputs={
        "image": Link("IMAGE"),
        "colors": Int(256, min=1, max=256, tooltip="How many there may be."),
        "dither": Choice(_DITHERS, tooltip="How the rest of each pixel is spread."),
    },
    outputs=("IMAGE",),
    category="image/postprocessing",
    estimate=_quantize_estimate,
)
def image_quantize(
    context: Context, image: Images, colors: int, dither: str
) -> Work[tuple[Images]]:
    """Reduces images to a few colours."""
    from engine.diffusion.images import filters

    return ((yield from filters.quantized(image, colors, dither=dither)),)


@node(
    "Canny",
    inputs={
        "image": Link("IMAGE"),
        "low_threshold": _threshold(0.4, "Of an edge that goes on from another."),
        "high_threshold": _threshold(0.8, "Of an edge."),
    },
    outputs=("IMAGE",),
    category="image/preprocessors",
    estimate=_canny_estimate,
)
def canny(
    context: Context, image: Images, low_threshold: float, high_threshold: float
) -> Work[tuple[Images]]:
    """The edges of images, in white on black."""
    from engine.diffusion.images.edges import canny_edges

    edges = yield from canny_edges(image, low=low_threshold, high=high_threshold)
    return (edges[..., None].repeat(1, 1, 1, 3),)
