"""Administrators see which jobs the service cannot read on."""

from __future__ import annotations

import httpx
import pytest

from events.ids import new_id
from events.types import Unknown
from tests.support.edge import Edge
from tests.support.events import MORNING, History, submitted

BLOCKED = "/v1/admin/jobs/blocked"
UNKNOWN = Unknown(original_type="darkroom.job.paused.v1")


async def test_there_are_none(admin: httpx.AsyncClient) -> None:
    assert (await admin.get(BLOCKED)).json() == {"jobs": [], "count": 0}


async def test_they_are_listed_page_by_page(edge: Edge, admin: httpx.AsyncClient) -> None:
    history, jobs = History(), [new_id() for _ in range(3)]
    for job_id in jobs:
        history.add(job_id, submitted(), UNKNOWN)
    await edge.services.read_model.apply(history.events, expected=0)
    page = (await admin.get(BLOCKED, params={"limit": 2})).json()
    assert [each["request_id"] for each in page["jobs"]] == jobs[:2]
    assert page["count"] == 3
    [first, _] = page["jobs"]
    assert first["position"] == 2
    assert first["why"] == "an event of a later version (darkroom.job.paused.v1)"
    assert first["since"] > MORNING.isoformat()
    cursor = page["next_cursor"]
    rest = (await admin.get(BLOCKED, params={"limit": 2, "cursor": cursor})).json()
    assert [each["request_id"] for each in rest["jobs"]] == jobs[2:]
    assert "next_cursor" not in rest


@pytest.mark.parametrize("cursor", ["-1", str(2**63), "9" * 30, "x"])
async def test_a_cursor_that_is_no_position_is_refused(
    admin: httpx.AsyncClient, cursor: str
) -> None:
    answer = await admin.get(BLOCKED, params={"cursor": cursor})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request")
