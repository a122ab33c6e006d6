"""Divides images and latents into overlapping tiles, so that large ones are processed in parts."""

from __future__ import annotations

from itertools import product


def tiles_of(
    width: int, height: int, *, tile: tuple[int, int], overlap: int
) -> list[tuple[slice, slice]]:
    """Return the rows and columns of each tile. No tile is larger than `tile` (width, height)."""
    rows, columns = _parts(height, tile[1], overlap), _parts(width, tile[0], overlap)
    return list(product(rows, columns))


def tiled_area(width: int, height: int, *, tile: tuple[int, int], overlap: int) -> int:
    """Return the total area of all tiles, in a time that does not depend on their number."""
    return _covered(height, tile[1], overlap) * _covered(width, tile[0], overlap)


def tilings(tile: int) -> tuple[tuple[int, int], ...]:
    """Return three shapes (width, height) of a tile.

    A VAE works once with each shape. The mean of the three results hides the seams of the tiles.
    """
    return (tile // 2, tile * 2), (tile * 2, tile // 2), (tile, tile)


def _parts(length: int, most: int, overlap: int) -> list[slice]:
    if length <= most:
        return [slice(0, length)]
    starts = range(0, length - overlap, max(1, most - overlap))
    return [slice(start, min(length, start + most)) for start in starts]


def _covered(length: int, most: int, overlap: int) -> int:
    if length <= most:
        return length
    starts = range(0, length - overlap, max(1, most - overlap))
    whole = len(range(0, length - most + 1, starts.step))
    cut = starts[whole:]
    return whole * most + len(cut) * length - sum(cut)
