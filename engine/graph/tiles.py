"""How planes are cut into tiles that overlap, for what is too large to be worked on at once."""

from __future__ import annotations

from itertools import product


def tiles_of(
    width: int, height: int, *, tile: tuple[int, int], overlap: int
) -> list[tuple[slice, slice]]:
    """The rows and columns of each tile, of that width and height at most."""
    rows, columns = _parts(height, tile[1], overlap), _parts(width, tile[0], overlap)
    return list(product(rows, columns))


def tiled_area(width: int, height: int, *, tile: tuple[int, int], overlap: int) -> int:
    """What all tiles have together. It takes no longer for sides that nobody can make."""
    return _covered(height, tile[1], overlap) * _covered(width, tile[0], overlap)


def tilings(tile: int) -> tuple[tuple[int, int], ...]:
    """Three shapes of a tile (width, height), whose mean shows no seams."""
    return (tile // 2, tile * 2), (tile * 2, tile // 2), (tile, tile)


def _parts(length: int, most: int, overlap: int) -> list[slice]:
    if length <= most:
        return [slice(0, length)]
    starts = range(0, length - overlap, max(1, most - overlap))
    return [slice(start, min(length, start + most)) for start in starts]


def _covered(length: int, most: int, overlap: int) -> int:
    """The lengths of all parts together, without the parts."""
    if length <= most:
        return length
    starts = range(0, length - overlap, max(1, most - overlap))
    whole = len(range(0, length - most + 1, starts.step))
    cut = starts[whole:]
    return whole * most + len(cut) * length - sum(cut)
