from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from engine.graph.tiles import tiled_area, tiles_of, tilings


@pytest.mark.parametrize("size", [(1, 1), (8, 8), (9, 30), (33, 17), (64, 64)])
@pytest.mark.parametrize(("side", "overlap"), [(8, 0), (8, 2), (12, 3), (64, 8)])
def test_tiles_cover_every_place(size: tuple[int, int], side: int, overlap: int) -> None:
    width, height = size
    for tile in tilings(side):
        seen: Counter[tuple[int, int]] = Counter()
        for rows, columns in tiles_of(width, height, tile=tile, overlap=overlap):
            assert 0 < columns.stop - columns.start <= tile[0]
            assert 0 < rows.stop - rows.start <= tile[1]
            seen.update(product(range(rows.start, rows.stop), range(columns.start, columns.stop)))
        assert seen.keys() == set(product(range(height), range(width)))
        assert seen.total() == tiled_area(width, height, tile=tile, overlap=overlap)


def test_what_no_machine_could_hold_is_measured_at_once() -> None:
    side = 2**53
    found = tiled_area(side, side, tile=(8, 8), overlap=2)
    assert found == ((side - 2) // 6 * 8) ** 2
