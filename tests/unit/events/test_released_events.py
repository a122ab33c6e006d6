"""What each release wrote is read without loss, for as long as a log may hold it.

`tests/golden/events/released/<version>/` has the golden files as they were at that release. They
are copied there when it is made, and never changed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from events.types import EVENT_TYPES, Unreadable
from events.wire.cloud_events import decode, encode

RELEASED = Path(__file__).parents[2] / "golden" / "events" / "released"
FILES = sorted(RELEASED.glob("*/*.json"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_what_a_release_wrote_is_read_to_the_letter(file: Path) -> None:
    stored = file.read_bytes()
    event = decode(stored)
    assert not isinstance(event.data, Unreadable)
    assert event.data.type_name in EVENT_TYPES
    assert encode(event) == stored


def test_every_release_is_pinned() -> None:
    changelog = (Path(__file__).parents[3] / "CHANGELOG.md").read_text()
    released = {
        line.split("[")[1].split("]")[0] for line in changelog.splitlines() if line[:4] == "## ["
    }
    assert {folder.name for folder in RELEASED.iterdir()} == released - {"Unreleased"}
