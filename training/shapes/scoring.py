"""Compares the requested scene with the scene that the judge recognises."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations

from training.shapes.judge import Patch, Picture, judge
from training.shapes.scenes import Relation, Scenes

_CLEARLY_APART = 8.0
"""The smallest distance in pixels between the centres of two shapes in the right order."""


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one picture. All values are from 0 to 1.

    `colours` is the share of the shapes that have the right colour. `shapes` is the share of the
    shapes that have the right outline.
    """

    background: float
    colours: float
    shapes: float
    relation: float

    @property
    def all_right(self) -> float:
        return float(min(self.background, self.colours, self.shapes, self.relation) == 1)


def score(picture: Picture, scenes: Scenes, row: int) -> Score:
    seen = judge(picture)
    count = int(scenes.count[row])
    shapes, colours = scenes.shapes[row, :count], scenes.colours[row, :count]
    patches = [*seen.patches[:count], *[None] * (count - len(seen.patches))]

    def right(order: Sequence[Patch | None]) -> tuple[int, int]:
        """Return the numbers of patches with the right colour and with the right outline."""
        there = [(index, patch) for index, patch in enumerate(order) if patch is not None]
        return (
            sum(patch.colour == colours[index] for index, patch in there),
            sum(patch.shape == shapes[index] for index, patch in there),
        )

    # Patches are matched to the shapes so that most colours are right, and then most outlines.
    best = max(permutations(patches), key=right)
    right_colours, right_shapes = right(best)
    return Score(
        background=float(seen.background == scenes.background[row]),
        colours=right_colours / count,
        shapes=right_shapes / count,
        relation=float(_in_order(best, Relation(scenes.relation[row]))),
    )


def mean(scores: Iterable[float]) -> float:
    listed = list(scores)
    return sum(listed) / len(listed)


def _in_order(patches: Sequence[Patch | None], relation: Relation) -> bool:
    if relation == Relation.ALONE:
        return patches[0] is not None
    coordinates = [
        None if p is None else p.x if relation == Relation.LEFT_OF else p.y for p in patches
    ]
    return all(
        one is not None and other is not None and other - one > _CLEARLY_APART
        for one, other in pairwise(coordinates)
    )
