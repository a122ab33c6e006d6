"""Bytes that are events, and bytes that are not."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.types import Broken, Cancelled, CancelRequested, Event, EventData, Started, Unknown
from events.wire.cloud_events import MalformedEvent, decode, decode_stored, encode


def event(data: EventData, **changes: Any) -> Event:
    values: dict[str, Any] = {
        "id": "0199aaaa-0000-7000-8000-0000000000e1",
        "job_id": "0199aaaa-0000-7000-8000-000000000001",
        "version": 12,
        "time": datetime(2026, 3, 1, 8, 30, tzinfo=UTC),
        "data": data,
    }
    return Event(**(values | changes))


def wire(**changes: Any) -> bytes:
    """A `Started` on the wire, with members of the envelope changed or (`None`) left out."""
    envelope = json.loads(encode(event(Started(attempt=1, actor="a")))) | changes
    return json.dumps({k: v for k, v in envelope.items() if v is not None}).encode()


def test_the_envelope_is_a_cloud_event() -> None:
    envelope = json.loads(encode(event(CancelRequested(), version=7)))
    assert envelope["specversion"] == "1.0"
    assert envelope["source"] == "/darkroom"
    assert envelope["type"] == "darkroom.job.cancel_requested.v1"
    assert envelope["subject"] == "0199aaaa-0000-7000-8000-000000000001"
    assert envelope["sequence"] == "0000000007"
    assert envelope["datacontenttype"] == "application/json"
    assert envelope["data"] == {}


def test_sequences_sort_as_text() -> None:
    sequences = [json.loads(encode(event(Cancelled(), version=v)))["sequence"] for v in (9, 10, 99)]
    assert sequences == sorted(sequences)


def test_a_type_of_a_later_version_is_unknown_and_has_its_place() -> None:
    decoded = decode(
        wire(type="darkroom.job.of_a_later_version.v9", data={"why": "maintenance"}), position=5
    )
    assert decoded.data == Unknown(original_type="darkroom.job.of_a_later_version.v9")
    assert (decoded.version, decoded.position) == (12, 5)


def test_fields_of_a_later_version_are_passed_over() -> None:
    data = {"attempt": 1, "actor": "a", "node": "gpu-7"}
    decoded = decode(wire(data=data, partitionkey="p3"))
    assert decoded == event(Started(attempt=1, actor="a"))


@pytest.mark.parametrize(
    ("type", "data"),
    [
        ("attempt_failed", {"attempt": 1, "message": "No.", "blame": "the weather"}),
        ("failed", {"message": "No.", "dead_letter": "lost_in_the_post"}),
        ("started", {"attempt": 1, "actor": "a", "exclusive": "a little"}),
    ],
)
def test_a_name_of_a_later_version_is_unknown(type: str, data: dict[str, Any]) -> None:
    decoded = decode(wire(type=f"darkroom.job.{type}.v1", data=data))
    assert decoded.data == Unknown(original_type=f"darkroom.job.{type}.v1")


def test_stored_bytes_that_are_no_event_keep_the_place_of_one() -> None:
    stored = decode_stored(b"no event", job_id="some-job", position=7)
    assert isinstance(stored.data, Broken)
    assert (stored.job_id, stored.position, stored.size_bytes) == ("some-job", 7, 8)
    whole = decode_stored(wire(), job_id="some-job", position=7)
    assert whole == event(Started(attempt=1, actor="a"), position=7)


GARBAGE = {
    "nothing": b"",
    "no text": b"\x00\xff",
    "null": b"null",
    "a list": b"[]",
    "an empty object": b"{}",
    "very deep": b"[" * 100_000,
    "cut off": wire()[:-1],
    "no id": wire(id=None),
    "no subject": wire(subject=None),
    "no sequence": wire(sequence=None),
    "a sequence in words": wire(sequence="one"),
    "a time in words": wire(time="yesterday"),
    "a time without a zone": wire(time="2026-03-01T08:30:00"),
    "a member of another type": wire(data={"attempt": "first", "actor": "a"}),
    "a member missing": wire(data={}),
    "data that is no object": wire(data=[]),
}


@pytest.mark.parametrize("payload", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_is_malformed(payload: bytes) -> None:
    with pytest.raises(MalformedEvent):
        decode(payload)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_no_bytes_raise_anything_else(payload: bytes) -> None:
    with pytest.raises(MalformedEvent):
        decode(payload)
