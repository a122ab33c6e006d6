"""The page of the events, `docs/events.md`."""

from __future__ import annotations

import re
from pathlib import Path

from events.types import EVENT_TYPES

PAGE = Path(__file__).parents[3] / "docs" / "events.md"


def test_the_page_says_of_every_event_type_when_it_happens() -> None:
    _, section = PAGE.read_text().split("## When each one happens\n")
    rows = re.findall(r"^\| `(.+)` \| .+ \|$", section.split("\n## ")[0], re.MULTILINE)
    assert sorted(rows) == sorted(EVENT_TYPES)
