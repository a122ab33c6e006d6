"""Counts of running jobs as they go over the bus."""

from __future__ import annotations

import json
import zlib

import pytest

from events.wire.running import MalformedRunning, RunningCounts, decode_running


@pytest.mark.parametrize("is_whole", [True, False])
def test_what_is_told_is_heard(*, is_whole: bool) -> None:
    counts = RunningCounts("one", {"alice": 2, "böb": 0}, is_whole=is_whole)
    assert decode_running(counts.encode()) == counts


@pytest.mark.parametrize(
    "said",
    [
        [],
        {"dispatcher": "one", "is_whole": True},
        {"dispatcher": "one", "by_owner": ["alice"], "is_whole": True},
        {"dispatcher": "one", "by_owner": {"alice": "many"}, "is_whole": True},
    ],
)
def test_what_is_no_count_is_refused(said: object) -> None:
    with pytest.raises(MalformedRunning):
        decode_running(zlib.compress(json.dumps(said).encode()))


def test_what_is_not_compressed_is_refused() -> None:
    with pytest.raises(MalformedRunning):
        decode_running(b"{}")
