"""`GET /v1/jobs/{id}/events`: what was stored, what happens, and the end."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode

import pytest

from events.decisions import Cancel, FailAttempt
from events.job_progress import JobProgress
from events.types import Completed, EventData, Started
from serve_app.live.messages import stored_message
from tests.support.edge import ACTOR, Client, Edge, submit
from tests.support.events import START, history_of, submitted
from tests.support.live.stream import Received, watching
from tests.support.telemetry.traces import CALLER, TRACE
from tests.unit.serve_app.live.conftest import Watch


def path(job_id: str) -> str:
    return f"/v1/jobs/{job_id}/events"


async def test_a_stream_tells_what_was_stored_and_what_happens_then_ends(
    edge: Edge, client: Client, watch: Watch
) -> None:
    job_id = await submit(client)
    await edge.start(job_id)
    async with watch(path(job_id)) as stream:
        assert await stream.names(2) == ["submitted", "started"]
        await edge.store_image(job_id)
        await edge.complete(job_id)
        assert await stream.names(2) == ["image_stored", "completed"]
        assert await stream.end() == []
    assert (stream.status, stream.is_whole) == (200, True)
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert stream.headers["cache-control"] == "no-store"


async def test_a_stored_file_is_shown_with_its_poster_and_its_text(
    edge: Edge, client: Client, watch: Watch
) -> None:
    job_id = await submit(client)
    members = {"duration_s": 2.5, "poster": b"a poster", "text": "a cat"}
    await edge.run(job_id, media_type="video/mp4", **members)
    [item] = (await client.get(f"/v1/jobs/{job_id}/result")).json()["results"]
    async with watch(path(job_id)) as stream:
        stored = (await stream.end())[2].data["data"]
    shown = ("url", "poster_url", "duration_s", "text")
    assert [stored[name] for name in shown] == [item[name] for name in shown]
    assert not {"poster", "key", "digest"} & stored.keys()


async def test_each_id_goes_on_without_a_gap_or_a_repeat(
    edge: Edge, client: Client, watch: Watch
) -> None:
    job_id = await submit(client)
    await edge.run(job_id, images=2)
    async with watch(path(job_id)) as stream:
        every = await stream.end()
    assert len(every) == 5
    for place, event in enumerate(every):
        async with watch(path(job_id), last_event_id=event.id) as stream:
            assert await stream.end() == every[place + 1 :]
    assert (stream.status, stream.body) == (204, b"")  # after the end a browser asks no more


async def test_an_event_is_a_cloud_event_with_what_is_for_callers(
    edge: Edge, client: Client, watch: Watch
) -> None:
    job_id = await submit(client, prompt="a secret garden")
    await edge.run(job_id)
    async with watch(path(job_id)) as stream:
        submitted, started, image, _ = await stream.end()
    assert submitted.data["type"] == "darkroom.job.submitted.v1"
    assert submitted.data["subject"] == job_id
    assert submitted.data["data"]["endpoint"] == "default"
    assert started.data["data"] == {"attempt": 1}
    url = image.data["data"]["url"]
    assert (await client.get(url)).status_code == 200
    for secret in (b"secret garden", b"alice", ACTOR.encode(), b"fingerprint", b"key_id"):
        assert secret not in stream.body


async def test_progress_is_told_without_an_id(edge: Edge, client: Client, watch: Watch) -> None:
    job_id = await submit(client)
    await edge.start(job_id)
    async with watch(path(job_id)) as stream:
        await stream.names(2)
        said = JobProgress(done=7, total=20, node="3", class_type="KSampler", rows=8, images=1)
        edge.progress.tell(job_id, said)
        told = await stream.event()
    assert (told.event, told.id) == ("progress", None)
    assert told.data == {
        "request_id": job_id,
        "progress": 0.35,
        "step": 7,
        "steps": 20,
        "node": "3",
        "class_type": "KSampler",
        "rows": 8,
        "images": 1,
    }


async def test_a_preview_is_for_those_who_watch_its_job_and_the_newest_alone(
    edge: Edge, client: Client, key: str, watch: Watch
) -> None:
    job_id = await submit(client)
    async with watch(path(job_id)) as stream, watching(edge.app, "/v1/events", key) as owners:
        await stream.names(1)
        await owners.began.wait()
        await edge.start(job_id)
        await stream.names(1)
        await owners.names(1)
        stream.takes.clear()
        for number in range(100):
            said = JobProgress(done=number, total=100, preview=b"jpeg %d" % number)
            edge.progress.tell(job_id, said)
            await asyncio.sleep(0)
        stream.takes.set()
        previews = list[Received]()
        while not previews or previews[-1].data["step"] < 99:
            if (told := await stream.event()).event == "preview":
                previews.append(told)
        await edge.complete(job_id, images=0)
        while (await owners.event()).event == "progress":
            pass
        assert [each.event for each in await stream.end()] == ["completed"]
    assert b64decode(previews[-1].data["jpeg"]) == b"jpeg 99"
    assert previews[-1].id is None
    assert len(previews) < 10
    assert b"preview" not in owners.body


@pytest.mark.parametrize("reason", ["cancelled", "failed"])
async def test_every_end_ends_the_stream(
    edge: Edge, client: Client, watch: Watch, reason: str
) -> None:
    job_id = await submit(client)
    await edge.start(job_id)
    async with watch(path(job_id)) as stream:
        await stream.names(2)
        if reason == "failed":
            await edge.execute(job_id, FailAttempt(actor=ACTOR, message="no memory", final=True))
        else:
            await edge.execute(job_id, Cancel())
            await edge.execute(job_id, FailAttempt(actor=ACTOR, message="stopped", final=True))
        last = (await stream.end())[-1]
    assert last.event == reason


async def test_an_erased_job_is_not_found_and_its_stream_ends(client: Client, watch: Watch) -> None:
    job_id = await submit(client)
    async with watch(path(job_id)) as stream:
        await stream.names(1)
        assert (await client.delete(f"/v1/jobs/{job_id}")).status_code == 200
        told = [each.event for each in await stream.end()]
    assert told in (["cancelled"], ["erased"])
    async with watch(path(job_id)) as stream:
        await stream.end()
    assert stream.status == 404


@pytest.mark.parametrize("id", ["unknown", "01a200b4-0000-7000-8000-000000000001"])
async def test_an_unknown_job_is_not_found(watch: Watch, id: str) -> None:
    async with watch(path(id)) as stream:
        await stream.end()
    assert stream.status == 404


@pytest.mark.parametrize("id", ["x", "-1", "1.5", str(2**63), "9" * 5000])
async def test_an_id_that_was_never_sent_is_refused(client: Client, watch: Watch, id: str) -> None:
    async with watch(path(await submit(client)), last_event_id=id) as stream:
        await stream.end()
    assert stream.status == 400


def callback_events_of(data: EventData) -> dict[str, object]:
    event = history_of(submitted(), data)[-1]
    lines = stored_message(event, lambda _job, _image: "").decode().splitlines()
    line = next(line for line in lines if line.startswith("data: "))
    said: dict[str, object] = json.loads(line.removeprefix("data: "))["data"]
    return said


def test_nobody_is_told_what_only_traces_tell() -> None:
    assert callback_events_of(Started(attempt=1, actor="a", given_at=START)) == {"attempt": 1}
    assert callback_events_of(Completed(images=1, beside=(f"{TRACE}-{CALLER}",))) == {"images": 1}
