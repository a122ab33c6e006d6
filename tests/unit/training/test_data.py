from __future__ import annotations

from random import Random

import numpy as np
import pytest

from training.shapes import vocabulary
from training.shapes.captions import caption
from training.shapes.drawing import draw
from training.shapes.scenes import (
    HELD_OUT,
    MOST_SHAPES,
    SIDE,
    TRAINED,
    Relation,
    Scenes,
    Size,
    Texture,
    draw_scenes,
)
from training.shapes.scoring import mean, score
from training.shapes.shapes import EXTENT

MANY = 3000


def scenes(n: int = MANY, *, seed: int = 1, **options: object) -> Scenes:
    return draw_scenes(np.random.default_rng(seed), n, **options)  # type: ignore[arg-type]  # as given


def captions(drawn: Scenes, seed: int = 1) -> list[str]:
    rng = Random(seed)
    return [caption(drawn, row, rng) for row in range(len(drawn))]


def combinations(drawn: Scenes) -> set[tuple[int, int, int]]:
    """Every shape with its colour and each colour of its background."""
    return {
        (int(drawn.shapes[row, slot]), int(drawn.colours[row, slot]), int(ground[row]))
        for row in range(len(drawn))
        for slot in range(drawn.count[row])
        for ground in (drawn.background, drawn.second)
    }


def test_the_same_seed_gives_the_same_scenes_pictures_and_captions() -> None:
    one, other = scenes(50), scenes(50)
    pictures = [draw(each, np.random.default_rng(2)) for each in (one, other)]
    assert np.array_equal(*pictures)
    assert captions(one) == captions(other)
    assert not np.array_equal(pictures[0], draw(scenes(50, seed=3), np.random.default_rng(2)))


def test_held_out_combinations_are_never_in_training() -> None:
    trained = combinations(scenes(20 * MANY))
    held_out = set(zip(*map(np.ndarray.tolist, np.nonzero(HELD_OUT)), strict=True))
    assert not trained & held_out
    assert not (TRAINED & HELD_OUT).any()
    assert 0.08 < HELD_OUT.sum() / (TRAINED | HELD_OUT).sum() < 0.12


@pytest.mark.parametrize("counts", [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_held_out_scenes_have_nothing_else(counts: tuple[int, int, int]) -> None:
    drawn = scenes(allowed=HELD_OUT, counts=counts, textured=0)
    assert all(HELD_OUT[each] for each in combinations(drawn))


def test_shapes_lie_on_the_picture_and_beside_each_other() -> None:
    drawn = scenes()
    for row in range(len(drawn)):
        count = drawn.count[row]
        reach = EXTENT * drawn.radii[row, :count, None]
        centres = drawn.centres[row, :count]
        assert (centres - reach >= -1).all()
        assert (centres + reach <= SIDE + 1).all()
        along = centres[:, 0 if drawn.relation[row] == Relation.LEFT_OF else 1]
        assert (np.diff(along) > drawn.radii[row, : count - 1]).all()


def test_every_kind_of_scene_comes_up() -> None:
    drawn = scenes()
    assert set(drawn.texture.tolist()) == set(Texture)
    assert set(drawn.size.tolist()) == set(Size)
    assert set(drawn.relation.tolist()) == set(Relation)
    assert set(drawn.count.tolist()) == set(range(1, MOST_SHAPES + 1))
    assert set(drawn.place.tolist()) == set(range(10))


def test_captions_have_trained_words_only_and_fit_into_one_chunk() -> None:
    tokens = vocabulary.tokens_of(captions(scenes()))
    assert tokens.shape == (MANY, 77)
    assert not (vocabulary.trained_index_of_token()[tokens] == vocabulary.UNKNOWN).any()


def test_the_judge_is_right_about_drawn_pictures() -> None:
    for counts in ((1, 0, 0), (0, 1, 0)):
        drawn = scenes(60, counts=counts, textured=0)
        pictures = draw(drawn, np.random.default_rng(1))
        scores = [score(picture, drawn, row) for row, picture in enumerate(pictures)]
        assert mean(each.all_right for each in scores) > 0.97
