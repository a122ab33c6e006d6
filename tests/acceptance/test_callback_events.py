"""Callbacks before the end, as a receiver gets them over HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook

from tests.support.callbacks.receiver import Receiver
from tests.support.polling import eventually
from tests.support.service import Service, diffusion, workflow

pytestmark = pytest.mark.timeout(1200)


async def report_of(service: Service, job_id: str) -> dict[str, Any]:
    """Once its callback has ended."""

    async def ended() -> dict[str, Any] | None:
        answer = await asyncio.to_thread(service.http.get, f"/v1/jobs/{job_id}/callbacks")
        report: dict[str, Any] = answer.raise_for_status().json()
        return None if report["state"] == "pending" else report

    return await eventually(ended)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("flavour", "body", "images"),
    [("workflow", workflow(), 1), ("diffusion", diffusion(batch_size=3), 3)],
)
async def test_start_images_and_end_are_told_in_order_and_signed(
    service: Service, flavour: str, body: dict[str, Any], images: int
) -> None:
    secret = (service.data_dir / "admin.whsec").read_text().strip()
    async with Receiver() as receiver:
        query = {"callback_url": receiver.url, "callback_events": "started,image,completed"}
        job_id = await asyncio.to_thread(service.submit, flavour, body, **query)
        received = await receiver.wait_for(images + 2, timeout_s=900)
        report = await report_of(service, job_id)
        result = await asyncio.to_thread(service.ended, job_id, flavour)
    bodies = [Webhook(secret).verify(each.body, each.headers) for each in received]
    assert [each["event"] for each in bodies] == ["started", *["image"] * images, "completed"]
    assert sorted(each["index"] for each in bodies[1:-1]) == list(range(images))
    for number, each in enumerate(bodies[1:-1], start=1):
        assert each["results"][each["index"]]["url"]
        assert sum("url" in image for image in each["results"]) == number
    end = json.loads(received[-1].body)
    assert end.pop("event") == "completed"
    assert end == result
    ids = [each.headers["webhook-id"] for each in received]
    assert (ids[0], ids[-1]) == (f"msg_{job_id}_started", f"msg_{job_id}")
    assert len(set(ids)) == len(ids)
    assert report["state"] == "delivered"
    assert [each.get("about") for each in report["tries"]] == [
        "started",
        *(f"image-{each['index']}" for each in bodies[1:-1]),
        None,
    ]
