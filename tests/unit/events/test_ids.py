from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.ids import LANES, PARTITIONS, derived_id, is_job_id, lane_of, new_id, partition_of

SECRET = b"0123456789abcdef"


def test_new_ids_are_version_7_and_sort_by_the_time_they_were_made() -> None:
    ids = [new_id() for _ in range(1000)]
    assert ids == sorted(set(ids))
    assert {uuid.UUID(id).version for id in ids} == {7}


def test_derived_ids_never_change() -> None:
    """A key that was used before an upgrade must still find its job after it."""
    assert derived_id(SECRET, "alice", "order-7") == "c59a5408-edd8-81f3-b754-1a7459853bc7"


def test_another_owner_key_or_secret_gives_another_id() -> None:
    ids = {
        derived_id(SECRET, "alice", "order-7"),
        derived_id(SECRET, "bob", "order-7"),
        derived_id(SECRET, "alice", "order-8"),
        derived_id(b"another secret..", "alice", "order-7"),
        derived_id(SECRET, "alic", "eorder-7"),
    }
    assert len(ids) == 5


@given(st.uuids())
def test_the_canonical_spelling_is_a_job_id(id: uuid.UUID) -> None:
    assert is_job_id(str(id))
    assert is_job_id(str(id).upper()) == (str(id).upper() == str(id))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "42",
        "*",
        ">",
        "a.b",
        "../../etc/passwd",
        "0199aaaa000070008000000000000001",
        "{0199aaaa-0000-7000-8000-000000000001}",
        "urn:uuid:0199aaaa-0000-7000-8000-000000000001",
        "0199AAAA-0000-7000-8000-000000000001",
        "0199aaaa-0000-7000-8000-000000000001\n",
        " 0199aaaa-0000-7000-8000-000000000001",
        "0199aaaa-0000-7000-8000-00000000000１",  # a digit, but not an ASCII one
    ],
)
def test_any_other_spelling_is_none(text: str) -> None:
    assert not is_job_id(text)


def test_partitions_and_lanes_never_change() -> None:
    """They are part of subjects in stored logs."""
    assert [partition_of(f"0199aaaa-{n}") for n in range(6)] == [0, 7, 0, 2, 4, 10]
    assert [lane_of(owner) for owner in ("alice", "bob", "")] == [5, 28, 46]


def test_ids_spread_over_every_partition_and_lane() -> None:
    ids = [new_id() for _ in range(2000)]
    assert {partition_of(id) for id in ids} == set(range(PARTITIONS))
    assert {lane_of(id) for id in ids} == set(range(LANES))
    assert (PARTITIONS, LANES) == (16, 64)
