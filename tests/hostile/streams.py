"""Hostile requests for event streams: positions that never existed, and invalid headers."""

from __future__ import annotations

from tests.hostile.attack import Attack

_EVENTS = "/v1/events"
_JOB = "/v1/jobs/01a200b4-0000-7000-8000-000000000001/events"


def _get(name: str, path: str, *, last_event_id: str | None = None, **query: str) -> Attack:
    headers = {} if last_event_id is None else {"last-event-id": last_event_id}
    return Attack(name, path, method="GET", params=query, headers=headers)


ATTACKS: tuple[Attack, ...] = (
    _get("a cursor of the far future", _EVENTS, cursor=str(2**63 - 1)),
    _get("a cursor beyond all numbers", _EVENTS, cursor=str(2**64)),
    _get("a cursor of 4,000 digits", _EVENTS, cursor="9" * 4000),
    _get("a cursor below the first", _EVENTS, cursor="-1"),
    _get("a Last-Event-ID of 4,000 digits", _EVENTS, last_event_id="9" * 4000),
    _get("a Last-Event-ID that is no number", _EVENTS, last_event_id="1; DROP TABLE jobs"),
    _get("a status that there is not", _EVENTS, status="7"),
    _get("an endpoint outside the folder", _EVENTS, endpoint="../../etc/passwd"),
    _get("a stream of a job that there is not", _JOB, last_event_id="1"),
    _get("a stream of no job", "/v1/jobs/%00%2e%2e/events"),
)
