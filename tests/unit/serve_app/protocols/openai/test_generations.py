"""Pictures by OpenAI's images API."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from events.decisions import Complete, FailAttempt
from events.job_progress import JobProgress
from events.store.records import Endpoint
from tests.support.edge import ACTOR, Client, Edge
from tests.support.generate_bodies import CHECKPOINT
from tests.support.live.stream import watching
from tests.support.polling import eventually
from tests.unit.serve_app.protocols.conftest import Answered, followed, messages

GENERATIONS = "/v1/images/generations"
WHOLE = bytes(range(256)) * 1000
"""Longer than what is read of a file at once."""


def body(**members: Any) -> dict[str, Any]:
    return {"prompt": "a cat", **members}


async def test_pictures_are_in_the_answer_as_base64(
    edge: Edge, client: Client, answered: Answered
) -> None:
    async def work(job_id: str) -> None:
        await edge.start(job_id)
        for index, data in enumerate((WHOLE, b"x")):
            await edge.store_image(job_id, index=index, data=data)
        await edge.complete(job_id, images=2)

    answer = await answered(client.post(GENERATIONS, json=body(n=2, size="64x64")), work)
    assert answer.status_code == 200
    told = answer.json()
    assert [base64.b64decode(each["b64_json"]) for each in told["data"]] == [WHOLE, b"x"]
    assert (told["size"], told["output_format"]) == ("64x64", "png")
    request = (await edge.submitted(answer)).request
    assert (request["width"], request["height"], request["batch_size"]) == (64, 64, 2)


@pytest.mark.parametrize("asked", [{}, {"response_format": "url"}])
async def test_what_was_left_out_is_told(
    edge: Edge, client: Client, answered: Answered, asked: dict[str, Any]
) -> None:
    async def work(job_id: str) -> None:
        await edge.start(job_id)
        await edge.store_image(job_id)
        await edge.execute(job_id, Complete(actor=ACTOR, images=1, notes=("vae_tiled",)))

    answer = await answered(client.post(GENERATIONS, json=body(**asked)), work)
    assert answer.json()["notes"] == ["vae_tiled"]
    assert json.loads(answer.headers["Darkroom-Notes"]) == ["vae_tiled"]


@pytest.mark.parametrize("asked", [{"response_format": "url"}, {"model": "dall-e-3"}])
async def test_an_answer_with_urls(
    edge: Edge, client: Client, answered: Answered, asked: dict[str, Any]
) -> None:
    answer = await answered(client.post(GENERATIONS, json=body(**asked)), edge.run)
    [picture] = answer.json()["data"]
    assert (await client.get(picture["url"])).content == b"pixels"


async def test_pictures_are_made_by_a_comfyui_server_with_core_nodes(
    edge: Edge, client: Client, answered: Answered
) -> None:
    server: dict[str, Any] = {"engine": "comfyui", "comfyui_url": "http://127.0.0.1:8188"}
    await edge.services.endpoints.put(Endpoint("comfy", checkpoint="xl.ckpt", **server))
    asked = body(model="comfy", size="64x64", output_format="png")

    submitted = await edge.submitted(await answered(client.post(GENERATIONS, json=asked), edge.run))

    assert (submitted.endpoint, submitted.image_format) == ("comfy", None)
    assert submitted.graph["checkpoint"]["inputs"] == {"ckpt_name": "xl.ckpt"}
    refused = await client.post(GENERATIONS, json=asked | {"output_format": "webp"})
    assert (refused.status_code, "image_format" in refused.text) == (400, True)


async def test_a_model_is_a_checkpoint_or_an_endpoint(
    edge: Edge, client: Client, answered: Answered
) -> None:
    await edge.services.endpoints.put(Endpoint("fast", max_steps=7))
    for model, endpoint, steps in (
        (CHECKPOINT, "default", 40),
        (CHECKPOINT.removesuffix(".safetensors"), "default", 40),
        ("fast", "fast", 7),
    ):
        asked = body(model=model, quality="high")
        answer = await answered(client.post(GENERATIONS, json=asked), edge.run)
        submitted = await edge.submitted(answer)
        assert submitted.endpoint == endpoint
        assert submitted.request["sd_model_checkpoint"] == CHECKPOINT
        assert submitted.request["steps"] == steps


REFUSED: list[tuple[dict[str, Any], int, str, str]] = [
    ({"prompt": None}, 400, "invalid_request", "prompt"),
    ({"n": 0}, 400, "invalid_request", "n"),
    ({"n": 11}, 400, "invalid_request", "n"),
    ({"size": "big"}, 400, "invalid_request", "size"),
    ({"size": "0x0"}, 400, "invalid_request", "size"),
    ({"size": "99999x99999"}, 400, "invalid_request", "size"),
    ({"size": "4096x4096", "n": 10}, 400, "invalid_request", "size"),
    ({"background": "transparent"}, 400, "invalid_request", "background"),
    ({"output_format": "gif"}, 400, "invalid_request", "output_format"),
    ({"frame_count": 3}, 400, "invalid_request", "frame_count"),
    ({"prompt": "a " * 20_000}, 400, "invalid_request", "prompt"),
    ({"model": "nobodys"}, 404, "model_not_found", "model"),
]


async def test_what_is_not_possible_is_refused_in_words_and_in_their_form(
    edge: Edge, client: Client
) -> None:
    for members, status, code, parameter in REFUSED:
        answer = await client.post(GENERATIONS, json=body(**members))
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (status, code, parameter)
        assert error["type"] == "invalid_request_error"
        assert error["message"]
        assert not edge.log.job_ids()


async def test_members_that_change_nothing_and_null_are_taken(
    edge: Edge, client: Client, answered: Answered
) -> None:
    asked = body(user="u", moderation="low", style="vivid", size=None, n=None, background="auto")
    assert (await answered(client.post(GENERATIONS, json=asked), edge.run)).status_code == 200
    asked = body(size="", quality="", watermark=False, image=None, tags=[], extra={}, mode="none")
    assert (await answered(client.post(GENERATIONS, json=asked), edge.run)).status_code == 200


@pytest.mark.parametrize(("code", "status"), [("invalid_input", 400), ("node_failed", 500)])
async def test_a_job_that_fails_is_an_error_that_names_it(
    edge: Edge, client: Client, answered: Answered, code: str, status: int
) -> None:
    async def work(job_id: str) -> None:
        await edge.start(job_id)
        failure = FailAttempt(actor=ACTOR, message="It is too odd.", final=True, code=code)
        await edge.execute(job_id, failure)

    answer = await answered(client.post(GENERATIONS, json=body()), work)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["message"]) == (status, code, "It is too odd.")
    assert answer.headers["x-should-retry"] == "false"
    assert error["request_id"] in edge.log.job_ids()


async def test_a_caller_who_hangs_up_has_the_job_cancelled(edge: Edge) -> None:
    sent = json.dumps(body()).encode()
    async with watching(edge.app, GENERATIONS, await edge.key(), body=sent):
        [job_id] = await eventually(edge.log.job_ids)

    async def is_ended() -> bool:
        return (await edge.job(job_id)).end is not None

    await eventually(is_ended)


class TestStream:
    async def test_partial_pictures_of_the_job_alone_come_before_the_whole_one(
        self, edge: Edge, client: Client, answered: Answered
    ) -> None:
        async def work(job_id: str) -> None:
            await edge.start(job_id)
            newest = await eventually(lambda: followed(edge))
            with edge.progress.watching("another job"):  # as another stream does
                for done in (1, 5, 6):
                    edge.progress.tell(job_id, JobProgress(done, 10, preview=f"{done}".encode()))
                    edge.progress.tell("another job", JobProgress(done, 10, preview=b"of another"))
                    await eventually(lambda: newest.preview is None)
            await edge.store_image(job_id, data=WHOLE)
            await edge.complete(job_id)

        asked = body(stream=True, partial_images=1)
        answer = await answered(client.post(GENERATIONS, json=asked), work)
        events = messages(answer.text)
        assert events[-1][0] == "image_generation.completed"
        assert all(data["type"] == kind for kind, data in events)
        assert base64.b64decode(events[-1][1]["b64_json"]) == WHOLE
        partial = [data for kind, data in events if kind == "image_generation.partial_image"]
        assert [each["partial_image_index"] for each in partial] == [0]
        assert base64.b64decode(partial[0]["b64_json"]) == b"5"
        assert edge.log.job_ids()
        assert len(edge.progress.listeners) == 1  # it listens no more

    async def test_a_failure_is_an_event(
        self, edge: Edge, client: Client, answered: Answered
    ) -> None:
        async def work(job_id: str) -> None:
            await edge.start(job_id)
            await edge.execute(job_id, FailAttempt(actor=ACTOR, message="No.", final=True))

        answer = await answered(client.post(GENERATIONS, json=body(stream=True)), work)
        [(kind, data)] = messages(answer.text)
        assert (kind, data["error"]["message"]) == ("error", "No.")

    async def test_what_is_refused_is_an_answer_and_no_event(
        self, edge: Edge, client: Client
    ) -> None:
        edge.health.full = 1.0
        answer = await client.post(GENERATIONS, json=body(stream=True))
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "log_full"
