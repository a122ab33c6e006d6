"""Positions and places of a log that is one stream or several."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.ids import PARTITIONS, new_id, partition_of
from events.streams.log_streams import (
    LogStreams,
    Place,
    earliest,
    is_beyond,
    like,
    most_between,
    moved,
    parse_place,
    part_of,
)

COUNTS = st.sampled_from([1, 2, 4, 8, 16])
SEQUENCES = st.integers(0, 2**40)


@given(COUNTS, SEQUENCES)
def test_a_position_says_which_message_of_which_stream_it_is(count: int, sequence: int) -> None:
    streams = LogStreams(count)
    positions = [stream.position(sequence) for stream in streams.all()]
    assert len(set(positions)) == count
    for stream, position in zip(streams.all(), positions, strict=True):
        assert streams.of_position(position) == stream.index
        assert not sequence or stream.sequence(position) == sequence
        assert stream.last_sequence(streams.spread(position)) == sequence
        assert stream.position(sequence + 1) > position


def test_a_position_of_a_log_that_was_one_stream_is_never_taken_for_none() -> None:
    """It would say that a job has no event yet."""
    for stream in LogStreams(16).all():
        assert stream.sequence(0) == 0
        assert all(stream.sequence(position) > 0 for position in range(1, 40))


def test_with_one_stream_a_position_is_the_number_of_its_message() -> None:
    [stream] = LogStreams(1).all()
    assert [stream.position(sequence) for sequence in (0, 1, 77)] == [0, 1, 77]
    assert LogStreams(1).place([5]) == 5


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16])
def test_each_partition_and_each_job_is_in_one_stream(count: int) -> None:
    streams = LogStreams(count)
    held = [list(streams.partitions(stream.index)) for stream in streams.all()]
    assert sorted(chain.from_iterable(held)) == list(range(PARTITIONS))
    for job_id in (new_id() for _ in range(50)):
        assert partition_of(job_id) in held[streams.of_job(job_id)]


@given(st.lists(st.integers(0, 200), max_size=60))
def test_a_place_has_what_it_was_moved_to_and_nothing_more(positions: list[int]) -> None:
    place, told = LogStreams(4).spread(0), dict.fromkeys(range(4), 0)
    for position in positions:
        place = moved(place, position)
        told[position % 4] = max(told[position % 4], position)
    for position in range(210):
        assert (position > place) == (position > told[position % 4])
        assert (position <= place) == (position <= told[position % 4])


def test_each_of_two_places_may_be_behind_the_other() -> None:
    one, other, both = Place((4, 9)), Place((8, 5)), Place((8, 9))
    assert is_beyond(one, other)
    assert is_beyond(other, one)
    assert is_beyond(both, one)
    assert not is_beyond(one, both)
    assert not is_beyond(one, one)
    assert earliest(one, other) == Place((4, 5))
    assert [is_beyond(3, 2), is_beyond(2, 2), earliest(3, 2)] == [True, False, 2]


def test_the_events_between_places_are_bounded() -> None:
    assert most_between(Place((0, 1)), Place((8, 5))) == 4 + 2
    assert most_between(Place((8, 1)), Place((0, 5))) == 2
    assert [most_between(3, 10), most_between(10, 3)] == [7, 0]


@given(COUNTS, st.integers(1, 2**40))
def test_the_streams_together_have_the_size_of_the_log_at_most(count: int, size: int) -> None:
    each = LogStreams(count).bytes_each(size)
    assert size - count < each * count <= max(size, count)
    assert each > 0  # NATS takes 0 for no limit
    assert LogStreams(count).bytes_each(-1) == -1


@given(COUNTS, st.lists(st.integers(0, 10**18 - 1), min_size=16, max_size=16))
def test_a_place_is_read_as_it_is_written(count: int, parts: list[int]) -> None:
    place = LogStreams(count).place(parts[:count])
    assert parse_place(str(place)) == place
    assert [part_of(place, index) for index in range(count)] == parts[:count]


@pytest.mark.parametrize(
    "text", ["", "-", "1-", "-1", "1--2", "1\n", "a", "1" * 19, "-".join("1" * 17)]
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a place"):
        parse_place(text)


def test_a_place_of_another_number_of_streams_is_refused() -> None:
    assert like(7, Place((1, 2))) == Place((7, 7))
    assert like(7, 3) == 7
    assert like(Place((7, 8)), Place((1, 2))) == Place((7, 8))
    for other in (3, Place((1, 2, 3, 4))):
        with pytest.raises(ValueError, match="another number"):
            like(Place((7, 8)), other)
