"""Hostile requests for event streams: positions that never existed, and invalid headers."""

from __future__ import annotations

from tests.hostile.attack import Attack, get

_EVENTS = "/v1/events"
_JOB = "/v1/jobs/01a200b4-0000-7000-8000-000000000001/events"


ATTACKS: tuple[Attack, ...] = (
    get("a cursor of the far future", _EVENTS, cursor=str(2**63 - 1)),
    get("a cursor beyond all numbers", _EVENTS, cursor=str(2**64)),
    get("a cursor of 4,000 digits", _EVENTS, cursor="9" * 4000),
    get("a cursor below the first", _EVENTS, cursor="-1"),
    get("a Last-Event-ID of 4,000 digits", _EVENTS, headers={"last-event-id": "9" * 4000}),
    get(
        "a Last-Event-ID that is no number",
        _EVENTS,
        headers={"last-event-id": "1; DROP TABLE jobs"},
    ),
    get("a status that there is not", _EVENTS, status="7"),
    get("an endpoint outside the folder", _EVENTS, endpoint="../../etc/passwd"),
    get("a stream of a job that there is not", _JOB, headers={"last-event-id": "1"}),
    get("a stream of no job", "/v1/jobs/%00%2e%2e/events"),
)
