from __future__ import annotations

import pytest

from docs.generate.events import event_types
from events.types import EVENT_TYPES


@pytest.fixture(scope="module")
def sections() -> dict[str, str]:
    """By the type's name."""
    parts = event_types().split("### ")[1:]
    return {part.split("`")[1]: part for part in parts}


def test_every_event_type_has_a_section(sections: dict[str, str]) -> None:
    assert list(sections) == list(EVENT_TYPES)


@pytest.mark.parametrize("name", EVENT_TYPES)
def test_a_section_lists_every_field(sections: dict[str, str], name: str) -> None:
    for field in EVENT_TYPES[name].model_fields:
        assert f"| `{field}` |" in sections[name]


def test_a_section_says_where_the_event_is_stored(sections: dict[str, str]) -> None:
    assert "stored in `JOBS`" in sections["darkroom.job.completed.v1"]
    assert "stored in `DELIVERIES`" in sections["darkroom.callback.delivered.v1"]


def test_docstrings_of_events_and_fields_are_shown(sections: dict[str, str]) -> None:
    assert "The last event of a job" in sections["darkroom.job.erased.v1"]
    submitted = sections["darkroom.job.submitted.v1"]
    assert "| `images` | integer | `0` | Images asked for;" in submitted
    assert "| `input_files.*.digest` | string | required | `sha256:` and hex. |" in submitted
