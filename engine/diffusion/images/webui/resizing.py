"""Images brought to a size as the WebUI does, by Pillow's filters, and masks alike."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from engine.diffusion.images.latents import Images, Mask
from engine.webui.img2img.members import ResizeMode

_MOST_PIXELS = 2**25
"""So many a picture may have on its way to the size that is wanted."""
Levels = NDArray[np.uint8]
"""(height, width, 3), or (height, width) of a mask."""


def flattened(images: Images, transparency: Mask) -> Images:
    """Images over white. A mask of another size says nothing of transparency."""
    if transparency.shape[1:] != images.shape[1:3] or not transparency.any():
        return images
    clear = transparency[..., None]
    return levelled(images * (1 - clear) + clear)


def resized(images: Images, width: int, height: int, *, mode: ResizeMode) -> Images:
    """Images of that size; see `_fitted`."""
    return tensor_of(_fitted(each, width, height, mode) for each in levels_of(images))


def resized_mask(mask: Mask, width: int, height: int, *, mode: ResizeMode) -> Mask:
    """A mask of that size; see `_fitted`."""
    return tensor_of(_fitted(each, width, height, mode) for each in levels_of(mask))


def stretched_mask(mask: Mask, width: int, height: int) -> Mask:
    """A mask of that size, by a filter that does not ring: what it covers grows by no more."""
    bilinear = Image.Resampling.BILINEAR
    return tensor_of(
        np.asarray(Image.fromarray(each).resize((width, height), bilinear))
        for each in levels_of(mask)
    )


def _fitted(picture: Levels, width: int, height: int, mode: ResizeMode) -> Levels:
    """Stretched; or of the same proportions, with what is too much cut off, or what is missing
    filled with the colours of the border.
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
    """A part of the image at that size. Where all of it would fill the memory, as of a long, thin
    picture, what is cut off is never made; levels may differ by rounding then.
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
