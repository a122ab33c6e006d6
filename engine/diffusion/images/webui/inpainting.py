"""Masks of the WebUI's inpainting, and what is put together by them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageFilter
from scipy import ndimage  # type: ignore[import-untyped]  # it ships no types

from engine.diffusion.images.latents import PIXELS_PER_LATENT, Images, Mask
from engine.diffusion.images.webui.resizing import (
    Levels,
    levelled,
    levels_of,
    resized,
    tensor_of,
)

_OPAQUE_FROM = 128
_BLUR_TRUNCATE = 2.5
"""A blur looks so many standard deviations far."""
_OVERLAY_GAIN = 2
"""What a soft edge is multiplied with where the whole picture is made, so that none of it shows."""
_FILLS = ((256, 1), (64, 1), (16, 2), (4, 4), (2, 2), (0, 1))
"""Radii of blurs in pixels, and how often each is laid over the ones before."""


@dataclass(frozen=True, slots=True)
class Region:
    """A part of an image, in pixels."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def width(self) -> int:
        return self.right - self.left

    @property
    def height(self) -> int:
        return self.bottom - self.top


def painted_mask(
    images: Images, transparency: Mask, *, inverts: bool, blur_x: int, blur_y: int
) -> Mask:
    """The mask that an image stands for: what is opaque, or its greys where all of it is.

    Blurs are standard deviations in pixels.
    """
    if transparency.shape[1:] == images.shape[1:3] and transparency.any():
        opaque = np.rint((1 - transparency.numpy()) * 255) > _OPAQUE_FROM
        found = list(opaque * np.uint8(255))
    else:
        found = [np.asarray(Image.fromarray(each).convert("L")) for each in levels_of(images)]
    if inverts:
        found = [255 - each for each in found]
    for axis, blur in ((1, blur_x), (0, blur_y)):
        if blur:
            found = [_blurred(each, blur, axis) for each in found]
    return tensor_of(found)


def region_of(mask: Mask, width: int, height: int, *, padding: int) -> Region:
    """The part of an image around what the mask covers, in the proportions of that size.

    Of a mask that covers nothing it is the whole image.
    """
    covered: NDArray[np.bool_] = np.any(mask.numpy() > 0, axis=0)
    across, down = mask.shape[2], mask.shape[1]
    if not covered.any():
        return Region(0, 0, across, down)
    # By rows and columns: the places of all pixels would take more memory than the picture.
    in_rows, in_columns = np.flatnonzero(covered.any(axis=1)), np.flatnonzero(covered.any(axis=0))
    top, bottom, left, right = in_rows[0], in_rows[-1] + 1, in_columns[0], in_columns[-1] + 1
    columns = (max(int(left) - padding, 0), min(int(right) + padding, across))
    rows = (max(int(top) - padding, 0), min(int(bottom) + padding, down))
    wide, high = columns[1] - columns[0], rows[1] - rows[0]
    if wide / high > width / height:
        rows = _widened(*rows, by=int(wide * height / width - high), most=down)
    else:
        columns = _widened(*columns, by=int(high * width / height - wide), most=across)
    return Region(columns[0], rows[0], columns[1], rows[1])


def cut_out(values: Images | Mask, region: Region) -> Images | Mask:
    """The part of images or masks that lies in the region."""
    return values[:, region.top : region.bottom, region.left : region.right]


def filled(images: Images, mask: Mask) -> Images:
    """Images with the colours of the surroundings where the mask is."""
    masks = levels_of(mask)
    return tensor_of(
        _filled(image, masks[index % len(masks)]) for index, image in enumerate(levels_of(images))
    )


def overlaid(made: Images, original: Images, mask: Mask, region: Region | None) -> Images:
    """What was made, put into the originals where the mask is.

    `region` is the part of the originals that was made; None where that is the whole.
    """
    _, height, width, _ = original.shape
    kept = 1 - levelled(mask if region is not None else (mask * _OVERLAY_GAIN).clamp(max=1))
    if region is None:
        below = made
    else:
        part = resized(made, region.width, region.height, mode="crop and resize")
        below = torch.zeros(len(made), height, width, 3)
        below[:, region.top : region.bottom, region.left : region.right] = part
    share = kept[..., None]
    return levelled(original * share + below * (1 - share))


def latent_mask(mask: Mask) -> Mask:
    """The mask of 0 and 1 that has a value for each cell of a latent."""
    size = (mask.shape[2] // PIXELS_PER_LATENT, mask.shape[1] // PIXELS_PER_LATENT)
    small = (
        Image.fromarray(each).resize(size, Image.Resampling.BICUBIC) for each in levels_of(mask)
    )
    return tensor_of(map(np.asarray, small)).round()


def _blurred(mask: Levels, blur: int, axis: int) -> Levels:
    soft = ndimage.gaussian_filter1d(
        mask.astype(np.float32), blur, axis=axis, mode="mirror", truncate=_BLUR_TRUNCATE
    )
    levels: Levels = np.rint(soft).clip(0, 255).astype(np.uint8)
    return levels


def _widened(first: int, last: int, *, by: int, most: int) -> tuple[int, int]:
    """A stretch that is `by` longer on both sides together, moved and cut to lie in 0..most."""
    first, last = first - by // 2, last + by - by // 2
    beyond = max(0, last - most)
    first, last = first - beyond, last - beyond
    before = max(0, -first)
    return first + before, min(last + before, most)


def _filled(picture: Levels, mask: Levels) -> Levels:
    known = 255 - mask
    holed = Image.fromarray(picture).convert("RGBA")
    holed.putalpha(Image.fromarray(known))
    # Colours times their alpha, so that what is masked adds nothing to a blur.
    weighed = holed.convert("RGBa")
    found = Image.new("RGBA", holed.size)
    for radius, times in _FILLS:
        blurred = weighed.filter(ImageFilter.GaussianBlur(radius)).convert("RGBA")
        for _ in range(times):
            found.alpha_composite(blurred)
    return np.asarray(found.convert("RGB"))
