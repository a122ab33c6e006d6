"""Functions that draw the lines and edges of images."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage  # type: ignore[import-untyped]  # it ships no types
from torch import Tensor

from darkroom_preprocessors.planes import at_resolution, blurred, grey, median

_LEAST_MEDIAN = 16.0
_LINE_LEVEL = 127.0
_DARK = 127
_FINE_SIGMA, _COARSE_SIGMA = 0.5, 5.0
_OTSU = (0, 255)
"""The thresholds that stand for the threshold of Otsu's method."""
_SOBEL = np.outer([1, 2, 1], [-1, 0, 1])[None]
_SLOPE, _FRACTION = 13573, 15
"""The tangent of 22.5 degrees is `_SLOPE` / 2 ** `_FRACTION`."""


def standard_lines(planes: Tensor, *, sigma: float, threshold: int, resolution: int) -> Tensor:
    """Return planes that are white where an image is darker than its surroundings."""
    planes = at_resolution(planes, resolution)
    darker = (blurred(planes, sigma) - planes).amin(0, keepdim=True).clamp(0, 255)
    usual = median(darker[darker > threshold])
    darker = darker / (max(_LEAST_MEDIAN, usual)) * _LINE_LEVEL
    return darker.clamp(0, 255).floor()


def scribble(planes: Tensor, *, resolution: int) -> Tensor:
    """Return planes that are black where any colour of an image is dark."""
    planes = at_resolution(planes, resolution, upscaled_by_area=True)
    return (planes.amin(0, keepdim=True) >= _DARK) * 255.0


def difference_lines(planes: Tensor, *, threshold: int, resolution: int) -> Tensor:
    """Return planes that are white where a fine blur is darker than a coarse blur.

    See Winnemöller et al. 2012, "XDoG".
    """
    planes = at_resolution(planes, resolution)
    difference = blurred(planes, _COARSE_SIGMA) - blurred(planes, _FINE_SIGMA)
    darker = difference.amin(0, keepdim=True).clamp(0, 255).ceil()
    return (2 * darker > threshold) * 255.0


def binary(planes: Tensor, *, threshold: int, resolution: int) -> Tensor:
    """Return planes that are white above a threshold. 0 and 255 mean Otsu's threshold."""
    brightness = grey(at_resolution(planes, resolution))
    bound = _otsu(brightness) if threshold in _OTSU else threshold
    return (brightness > bound) * 255.0


def _otsu(brightness: Tensor) -> int:
    """Return the threshold that separates two groups of levels best (Otsu 1979)."""
    counts = torch.bincount(brightness.long().flatten(), minlength=256).double()
    levels = torch.arange(256, device=counts.device).double()
    below, sums = counts.cumsum(0), (counts * levels).cumsum(0)
    above = below[-1] - below
    means = sums / below.clamp(min=1), (sums[-1] - sums) / above.clamp(min=1)
    return int((below * above * (means[0] - means[1]) ** 2).argmax())


def edges(planes: Tensor, *, low: int, high: int, resolution: int) -> Tensor:
    """Return planes that are white on the edges of an image (Canny 1986)."""
    levels = at_resolution(planes, resolution).cpu().numpy().astype(np.int64)
    found = _connected(*_thinned(levels), low=min(low, high), high=max(low, high))
    return torch.from_numpy(found[None] * np.float32(255.0)).to(planes.device)


def _thinned(levels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return each pixel's largest gradient of a colour, and whether that gradient is a ridge."""
    kernels = _SOBEL, _SOBEL.transpose(0, 2, 1)
    across, down = (ndimage.correlate(levels, each, mode="nearest") for each in kernels)
    strongest = (abs(across) + abs(down)).argmax(0)[None]
    dx, dy = (np.take_along_axis(each, strongest, 0)[0] for each in (across, down))
    size = abs(dx) + abs(dy)
    framed = np.pad(size, 1)

    def beside(row: int, column: int) -> NDArray[np.int64]:
        height, width = size.shape
        return framed[1 + row : 1 + row + height, 1 + column : 1 + column + width]

    steep, flat = abs(dy) << _FRACTION, abs(dx) * _SLOPE
    is_across = steep < flat
    is_down = steep > flat + (abs(dx) << (_FRACTION + 1))
    falls = (dx ^ dy) < 0
    diagonal = np.where(
        falls,
        (size > beside(-1, 1)) & (size > beside(1, -1)),
        (size > beside(-1, -1)) & (size > beside(1, 1)),
    )
    ridge = np.where(
        is_across,
        (size > beside(0, -1)) & (size >= beside(0, 1)),
        np.where(is_down, (size > beside(-1, 0)) & (size >= beside(1, 0)), diagonal),
    )
    return size, ridge


def _connected(
    size: NDArray[np.int64], ridge: NDArray[np.bool_], *, low: int, high: int
) -> NDArray[np.bool_]:
    """Return the ridges above `low` that are connected to a ridge above `high`."""
    groups, _ = ndimage.label(ridge & (size > low), structure=np.ones((3, 3)))
    strong = np.unique(groups[ridge & (size > high)])
    return np.isin(groups, strong[strong > 0])
