"""The wire form. Its golden files are changed by hand only: every stored log has this form."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.cloud_events import MalformedEvent, decode, decode_stored, encode
from events.types import (
    EVENT_TYPES,
    Broken,
    Cancelled,
    Event,
    EventData,
    Started,
    Unknown,
    Unreadable,
)
from tests.support.events import submitted

GOLDEN = Path(__file__).parents[2] / "golden" / "events"

DEFAULTS = submitted(request={"prompt": "a red circle", "seed": 1}, fingerprint="3f6c", bare=True)
"""A submission that leaves most members to their defaults."""


def event(data: EventData, **changes: Any) -> Event:
    values: dict[str, Any] = {
        "id": "0199aaaa-0000-7000-8000-0000000000e1",
        "job_id": "0199aaaa-0000-7000-8000-000000000001",
        "version": 12,
        "time": datetime(2026, 3, 1, 8, 30, 0, 120_000, tzinfo=UTC),
        "data": data,
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
    return Event(**(values | changes))


def test_every_member_of_every_type_is_in_a_golden_file() -> None:
    pinned = defaultdict[str, set[str]](set)
    for file in GOLDEN.glob("*.json"):
        written = json.loads(file.read_bytes())
        pinned[written["type"]] |= written["data"].keys()
    assert pinned == {name: data.model_fields.keys() for name, data in EVENT_TYPES.items()}


@pytest.mark.parametrize(
    ("file", "data"),
    [("darkroom.job.submitted.v1.bare", DEFAULTS), ("darkroom.job.cancelled.v1", Cancelled())],
)
def test_the_wire_form_is_pinned_with_its_defaults(file: str, data: EventData) -> None:
    pinned = (GOLDEN / f"{file}.json").read_bytes()
    assert encode(event(data)) == pinned
    assert decode(pinned) == event(data)


FILES = sorted(GOLDEN.rglob("*.json"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_what_this_version_or_a_release_wrote_is_read_without_loss(file: Path) -> None:
    """The files of a release are copied when it is made."""
    stored = file.read_bytes()
    event = decode(stored)
    assert not isinstance(event.data, Unreadable)
    assert encode(event) == stored


def test_every_release_is_pinned() -> None:
    changelog = (Path(__file__).parents[3] / "CHANGELOG.md").read_text()
    released = {
        line.split("[")[1].split("]")[0] for line in changelog.splitlines() if line[:4] == "## ["
    }
    pinned = {folder.name for folder in (GOLDEN / "released").glob("*")}
    assert pinned == released - {"Unreleased"}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)  # fmt: skip


@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_a_request_is_kept_to_the_letter(request: dict[str, Any]) -> None:
    original = event(DEFAULTS.model_copy(update={"request": request}))
    assert decode(encode(original)) == original


# Bytes that are events, and bytes that are not.


def wire(**changes: Any) -> bytes:
    """A `Started` on the wire, with members of the envelope changed or (`None`) left out."""
    envelope = json.loads(encode(event(Started(attempt=1, actor="a")))) | changes
    return json.dumps({k: v for k, v in envelope.items() if v is not None}).encode()


def test_a_type_of_a_later_version_is_unknown_and_has_its_place() -> None:
    decoded = decode(
        wire(type="darkroom.job.of_a_later_version.v9", data={"why": "maintenance"}), position=5
    )
    assert decoded.data == Unknown(original_type="darkroom.job.of_a_later_version.v9")
    assert (decoded.version, decoded.position) == (12, 5)


def test_fields_of_a_later_version_are_passed_over() -> None:
    data = {"attempt": 1, "actor": "a", "node": "gpu-7"}
    assert decode(wire(data=data, partitionkey="p3")) == event(Started(attempt=1, actor="a"))


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
