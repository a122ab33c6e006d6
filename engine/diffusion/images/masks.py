"""Operations on masks. A mask is (batch, height, width) of 0..1 on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.batcher import Work, YieldRequest
from engine.diffusion.images.compositing import ramp
from engine.diffusion.images.latents import Images, Mask
from engine.errors import EngineError

VALUES_BETWEEN_YIELDS = 4_000_000
"""The number of values that a run may compute before it yields to other runs."""


def planes(mask: Mask) -> Mask:
    """Return the mask as (batch, height, width), with all leading dimensions in one."""
    return mask.reshape(-1, *mask.shape[-2:])


def composed(below: Mask, above: Mask, *, x: int, y: int, operation: str) -> Mask:
    """Combine `below` with `above` at `x`, `y`, by an operation on each pair of values."""
    result, above = planes(below).clone(), planes(above)
    window = result[:, y : y + above.shape[1], x : x + above.shape[2]]
    source = above[:, : window.shape[1], : window.shape[2]]
    if len(source) not in {1, len(result)}:
        raise EngineError(
            f"{len(source)} masks can be combined with one mask or with the same number of masks, "
            f"but not with {len(result)}."
        )
    match operation:
        case "multiply":
            found = window * source
        case "add":
            found = window + source
        case "subtract":
            found = window - source
        case "and":
            found = (_is_set(window) & _is_set(source)).float()
        case "or":
            found = (_is_set(window) | _is_set(source)).float()
        case _:
            found = (_is_set(window) ^ _is_set(source)).float()
    window.copy_(found)
    return result.clamp(0.0, 1.0)


def _is_set(mask: Mask) -> Tensor:
    return mask.round().bool()


def cropped(mask: Mask, *, x: int, y: int, width: int, height: int) -> Mask:
    """Return a rectangle of the mask. Raises EngineError if the result is empty."""
    part = planes(mask)[:, y : y + height, x : x + width]
    if not part.numel():
        raise EngineError(f"A crop that begins at {x}, {y} is outside of the mask.")
    return part


def feathered(mask: Mask, *, left: int, top: int, right: int, bottom: int) -> Mask:
    """Return the mask with soft sides: values fall over the given number of pixels at each side."""
    mask = planes(mask)
    height, width = mask.shape[1:]
    return mask * _soft_ends(width, left, right) * _soft_ends(height, top, bottom)[:, None]


def _soft_ends(length: int, first: int, last: int) -> Tensor:
    """Return (length,) weights that rise over `first` positions and fall over `last` positions.

    As in ComfyUI, the fall is one position too late, so its last value is at the first position.
    """
    rise = ramp(length, min(first, length), first=True, last=False)
    fall = ramp(length, min(last, length), first=False, last=True).roll(1)
    return rise * fall


def of_colour(images: Images, colour: int) -> Mask:
    """Return a mask of 1 where the images have exactly that colour, 0xRRGGBB."""
    levels = (images.clamp(0, 1) * 255.0).round().int()
    wanted = torch.tensor([colour >> shift & 0xFF for shift in (16, 8, 0)], dtype=torch.int32)
    return (levels == wanted).all(dim=-1).float()


def grown(mask: Mask, by: int, *, tapered: bool) -> Work[Mask]:
    """Grow the mask by `by` pixels. A negative number shrinks the mask.

    A single pixel grows to a square, or to a diamond if `tapered`. Other runs may proceed while a
    tapered mask is computed.
    """
    mask = planes(mask)
    if by < 0:
        return 1.0 - (yield from grown(1.0 - mask, -by, tapered=tapered))
    if not tapered:
        return _along(_along(mask, by, 1), by, 2)
    done = 0
    for _ in range(min(by, sum(mask.shape[1:]))):
        done += mask.numel()
        if done > VALUES_BETWEEN_YIELDS:
            yield YieldRequest()
            done = 0
        mask = torch.maximum(_along(mask, 1, 1), _along(mask, 1, 2))
    return mask


def _along(mask: Mask, by: int, side: int) -> Mask:
    """Return the maximum within `by` positions along the axis `side`."""
    by, reached = min(by, mask.shape[side] - 1), 0
    while reached < by:
        step = min(reached + 1, by - reached)
        length = mask.shape[side] - step
        found = mask.clone()
        found.narrow(side, 0, length).copy_(
            torch.maximum(mask.narrow(side, 0, length), mask.narrow(side, step, length))
        )
        later = found.narrow(side, step, length)
        later.copy_(torch.maximum(later, mask.narrow(side, 0, length)))
        mask, reached = found, reached + step
    return mask
