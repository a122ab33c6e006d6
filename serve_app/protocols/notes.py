"""Adds the notes of a job, its deviations from the request, to the answers of the protocols."""

from __future__ import annotations

import json
from typing import Any

from events.job import Job
from events.result import notes_of

NOTES_HEADER = "Darkroom-Notes"
_MOST_IN_HEADER = 10
_MOST_HEADER_BYTES = 3000
"""Proxies and clients often refuse headers of more than 4 or 8 kB."""


def note_members(job: Job) -> dict[str, Any]:
    """Return the member `notes`, or nothing if the job has no notes."""
    notes = notes_of(job)
    return {} if notes is None else {"notes": list(notes)}


def note_headers(job: Job) -> dict[str, str]:
    """Return the header with the first notes as a list in JSON, or nothing without notes."""
    notes = list(notes_of(job) or ())[:_MOST_IN_HEADER]
    while len(text := json.dumps(notes)) > _MOST_HEADER_BYTES:
        notes.pop()
    return {NOTES_HEADER: text} if notes else {}
