"""Owners by turn: in order, and without a look at those that are not asked for."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.waiting.rings import Rings


class CountedTurn(int):
    """Counts how often two of them are compared."""

    comparisons = 0

    def __lt__(self, other: int) -> bool:
        CountedTurn.comparisons += 1
        return int(self) < int(other)


def _comparisons_of_a_look(turns: int) -> int:
    rings = Rings[int]()
    for turn in range(turns):
        rings.add(turn, CountedTurn(turn))
    CountedTurn.comparisons = 0
    assert [member for _, member in rings.first(16)] == list(range(16))
    return CountedTurn.comparisons


def test_a_look_at_the_first_does_not_grow_with_the_number_of_turns() -> None:
    few, many = _comparisons_of_a_look(1000), _comparisons_of_a_look(100_000)
    # The logarithm: of 1,000 it is 10, and of 100,000 it is 17.
    assert 16 <= few <= many <= 2 * few


def test_turns_that_were_left_are_looked_at_once() -> None:
    rings = Rings[int]()
    for member in range(1000):
        rings.add(member, CountedTurn(member))
    for member in range(1, 999):
        rings.remove(member)
    assert rings.first(2) == [(0, 0), (999, 999)]
    CountedTurn.comparisons = 0
    assert rings.first(2) == [(0, 0), (999, 999)]
    assert CountedTurn.comparisons < 10


@pytest.mark.parametrize("most", [1, 3, 100])
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 5))))
def test_the_first_are_those_of_the_first_turns(
    most: int, steps: list[tuple[bool, int, int]]
) -> None:
    rings, plain = Rings[int](), defaultdict[int, list[int]](list)
    for is_added, member, turn in steps:
        before = next((each for each in plain if member in plain[each]), None)
        assert (member in rings) == (before is not None)
        if before is not None and is_added:
            rings.make_first(member)
            plain[before].remove(member)
            plain[before].insert(0, member)
        elif before is not None:
            assert rings.remove(member) == before
            plain[before].remove(member)
        elif is_added:
            rings.add(member, turn)
            plain[turn].append(member)
    every = [(turn, member) for turn in sorted(plain) for member in plain[turn]]
    assert rings.first(most) == every[:most]
    assert rings.turn == (every[0][0] if every else None)
