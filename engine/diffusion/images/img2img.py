"""Prepares images and masks for the WebUI's img2img and inpainting.

As in the WebUI, values are rounded to levels of 0 to 255, and Pillow resizes images.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageFilter
from scipy import ndimage  # type: ignore[import-untyped]  # it ships no types

from engine.diffusion.images.latents import PIXELS_PER_LATENT, Images, Mask
from engine.webui.parameters import ResizeMode

_MOST_PIXELS = 2**25
"""If a scaled picture has more pixels, only the part that remains after the crop is computed."""
Levels = NDArray[np.uint8]
"""(height, width, 3) for an image, (height, width) for a mask."""


def flattened(images: Images, transparency: Mask) -> Images:
    """Put images over a white background. A mask of another size is ignored."""
    if transparency.shape[1:] != images.shape[1:3] or not transparency.any():
        return images
    clear = transparency[..., None]
    return levelled(images * (1 - clear) + clear)


def resized(images: Images, width: int, height: int, *, mode: ResizeMode) -> Images:
    """Resize images; see `_fitted` for the modes."""
    return tensor_of(_fitted(each, width, height, mode) for each in levels_of(images))


def resized_mask(mask: Mask, width: int, height: int, *, mode: ResizeMode) -> Mask:
    """Resize a mask; see `_fitted` for the modes."""
    return tensor_of(_fitted(each, width, height, mode) for each in levels_of(mask))


def stretched_mask(mask: Mask, width: int, height: int) -> Mask:
    """Stretch a mask to that size, with a filter that adds no values far from masked pixels."""
    bilinear = Image.Resampling.BILINEAR
    return tensor_of(
        np.asarray(Image.fromarray(each).resize((width, height), bilinear))
        for each in levels_of(mask)
    )


def _fitted(picture: Levels, width: int, height: int, mode: ResizeMode) -> Levels:
    """Stretch a picture, or scale it in proportion and then crop or extend it.

    An extended picture repeats the colours of its border.
    """
    image = Image.fromarray(picture)
    across, down = image.size
    if (across, down) == (width, height):
        return picture
    is_wider = width / height > across / down
    if mode == "just resize":
        return np.asarray(image.resize((width, height), Image.Resampling.LANCZOS))
    if is_wider == (mode == "crop and resize"):
        size = (width, max(1, down * width // across))
    else:
        size = (max(1, across * height // down), height)
    left, top = size[0] // 2 - width // 2, size[1] // 2 - height // 2
    kept = (max(0, left), max(0, top), min(size[0], left + width), min(size[1], top + height))
    scaled = np.asarray(_scaled_part(image, size, kept))
    before = (max(0, -top), max(0, -left))
    missing = [
        (first, full - first - have)
        for first, full, have in zip(before, (height, width), scaled.shape, strict=False)
    ]
    return np.pad(scaled, missing + [(0, 0)] * (scaled.ndim - 2), mode="edge")


def _scaled_part(
    image: Image.Image, size: tuple[int, int], part: tuple[int, int, int, int]
) -> Image.Image:
    """Return a part of the image after scaling the image to `size`.

    If the scaled image would be too large, for example because it is long and thin, only the part
    is computed. Its levels may then differ by rounding from those of the whole image.
    """
    left, top, right, bottom = part
    if size[0] * size[1] <= _MOST_PIXELS:
        return image.resize(size, Image.Resampling.LANCZOS).crop(part)
    x_scale, y_scale = image.width / size[0], image.height / size[1]
    box = (left * x_scale, top * y_scale, right * x_scale, bottom * y_scale)
    inside = (*box[:2], min(box[2], image.width), min(box[3], image.height))
    return image.resize((right - left, bottom - top), Image.Resampling.LANCZOS, box=inside)


def levels_of(values: Images | Mask) -> list[Levels]:
    return list((values.clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy())


def levelled(values: torch.Tensor) -> torch.Tensor:
    return (values.clamp(0, 1) * 255).round() / 255


def tensor_of(pictures: Iterable[Levels]) -> torch.Tensor:
    return torch.from_numpy(np.stack(list(pictures)).astype(np.float32) / 255)


_OPAQUE_FROM = 128
_BLUR_TRUNCATE = 2.5
"""The radius of a blur, in standard deviations."""
_OVERLAY_GAIN = 2
"""If the whole picture is generated, the mask is multiplied by this factor. The new picture then
covers the soft edge of the mask.
"""
_FILLS = ((256, 1), (64, 1), (16, 2), (4, 4), (2, 2), (0, 1))
"""The radius of each blur in pixels, and the number of times that the blur is composited."""


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
    """Return the mask that an image encodes.

    The mask is the opaque part of the image, or its grey levels if the whole image is opaque.
    `blur_x` and `blur_y` are standard deviations in pixels.
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
    """Return the part of an image around the masked pixels, in the proportions of the size.

    If the mask covers nothing, the region is the whole image.
    """
    covered: NDArray[np.bool_] = np.any(mask.numpy() > 0, axis=0)
    across, down = mask.shape[2], mask.shape[1]
    if not covered.any():
        return Region(0, 0, across, down)
    # Only rows and columns are listed: the positions of all pixels would need too much memory.
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
    return values[:, region.top : region.bottom, region.left : region.right]


def filled(images: Images, mask: Mask) -> Images:
    """Fill the masked part of images with the colours of the surroundings."""
    masks = levels_of(mask)
    return tensor_of(
        _filled(image, masks[index % len(masks)]) for index, image in enumerate(levels_of(images))
    )


def overlaid(made: Images, original: Images, mask: Mask, region: Region | None) -> Images:
    """Paste the new images into the masked part of the original images.

    `region` is the part of the originals that was generated. None: the whole image.
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
    """Return a mask of 0 and 1 with one value for each cell of a latent."""
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
    """Return a range that is longer by `by` in total, moved into 0..most and cut if needed."""
    first, last = first - by // 2, last + by - by // 2
    beyond = max(0, last - most)
    first, last = first - beyond, last - beyond
    before = max(0, -first)
    return first + before, min(last + before, most)


def _filled(picture: Levels, mask: Levels) -> Levels:
    known = 255 - mask
    holed = Image.fromarray(picture).convert("RGBA")
    holed.putalpha(Image.fromarray(known))
    # Colours are multiplied by alpha, so the masked part adds nothing to a blur.
    weighed = holed.convert("RGBa")
    found = Image.new("RGBA", holed.size)
    for radius, times in _FILLS:
        blurred = weighed.filter(ImageFilter.GaussianBlur(radius)).convert("RGBA")
        for _ in range(times):
            found.alpha_composite(blurred)
    return np.asarray(found.convert("RGB"))
