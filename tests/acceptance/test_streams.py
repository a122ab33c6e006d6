"""A job watched as it happens, through the service's own HAProxy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.service import Service, diffusion

pytestmark = pytest.mark.timeout(1200)


def test_a_job_is_watched_from_its_submission_to_its_end(service: Service) -> None:
    told: list[str] = []
    data: dict[str, Any] = {}
    job_id = service.submit("diffusion", diffusion(steps=30, batch_size=2))
    with service.http.stream("GET", f"/v1/jobs/{job_id}/events", timeout=400) as answer:
        for line in answer.iter_lines():
            name, _, value = line.partition(": ")
            if name == "event":
                told.append(value)
            elif name == "data":
                data = json.loads(value)
    stored = [each for each in told if each not in {"progress", "queued"}]
    assert stored == ["submitted", "started", "image_stored", "image_stored", "completed"]
    assert "progress" in told
    assert (data["subject"], data["data"]["images"]) == (job_id, 2)
