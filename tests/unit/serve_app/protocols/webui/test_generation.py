"""txt2img and img2img of the WebUI's API."""

from __future__ import annotations

import asyncio
import base64
import json
from functools import partial
from typing import Any

import httpx
import numpy as np
import pytest

from actors.worker.result_file import encode_png
from events.decisions import Cancel, ConfirmCancel, Quarantine
from tests.support.edge import ACTOR, Client, Edge
from tests.support.polling import eventually
from tests.support.uploads import png
from tests.unit.serve_app.protocols.conftest import Answered

TEXT_TO_IMAGE, IMAGE_TO_IMAGE = "/sdapi/v1/txt2img", "/sdapi/v1/img2img"
WRITTEN = "a cat\nSteps: 20, Sampler: Euler"
PICTURE = encode_png(np.zeros((64, 64, 3), np.uint8), {"prompt": "{}", "parameters": WRITTEN})


def base64_png(colour: str = "red", size: tuple[int, int] = (8, 8)) -> str:
    return base64.b64encode(png(colour, size)).decode()


def body(**changed: Any) -> dict[str, Any]:
    return {"prompt": "a cat", "steps": 4, "width": 64, "height": 64, **changed}


async def recorded(edge: Edge, answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return (await edge.job(json.loads(answer.json()["info"])["request_id"])).submitted


@pytest.fixture
def run(edge: Edge) -> Any:
    return partial(edge.run, data=PICTURE)


async def test_the_answer_has_pictures_parameters_and_how_they_were_made(
    edge: Edge, client: Client, answered: Answered, run: Any
) -> None:
    asked = body(batch_size=2, seed=7, negative_prompt="dog", sampler_name="Euler a")
    answer = await answered(client.post(TEXT_TO_IMAGE, json=asked), partial(run, images=2))
    told = answer.json()
    assert [base64.b64decode(each) for each in told["images"]] == [PICTURE, PICTURE]
    assert told["parameters"]["seed"] == 7
    info = json.loads(told["info"])
    assert info["infotexts"] == [WRITTEN, WRITTEN]
    assert info["all_seeds"] == [7, 8]
    assert (info["width"], info["height"], info["steps"]) == (64, 64, 4)
    assert (info["sampler_name"], info["negative_prompt"]) == ("Euler a", "dog")
    submitted = await recorded(edge, answer)
    assert submitted.preview is True
    assert submitted.request["compatibility"] == "webui"


async def test_images_are_left_out_where_they_are_not_wanted(
    client: Client, answered: Answered, run: Any
) -> None:
    answer = await answered(client.post(TEXT_TO_IMAGE, json=body(send_images=False)), run)
    assert answer.json()["images"] == []
    assert json.loads(answer.json()["info"])["infotexts"] == [WRITTEN]


@pytest.mark.parametrize("form", ["{}", "data:image/png;base64,{}"])
async def test_images_in_base64_become_uploads(
    edge: Edge, client: Client, answered: Answered, run: Any, form: str
) -> None:
    asked = body(init_images=[form.format(base64_png())], mask=form.format(base64_png("white")))
    answer = await answered(client.post(IMAGE_TO_IMAGE, json=asked), run)
    submitted = await recorded(edge, answer)
    [start] = submitted.request["init_images"]
    assert list(submitted.input_files) == [start, submitted.request["mask"]]
    assert "init_images" not in answer.json()["parameters"]
    again = await answered(client.post(IMAGE_TO_IMAGE, json=asked), run)
    assert (await recorded(edge, again)).request["init_images"] == [start]
    assert len((await client.get("/v1/uploads")).json()["uploads"]) == 2


async def test_what_clients_send_along_is_taken(
    client: Client, answered: Answered, run: Any
) -> None:
    """As SillyTavern and Forge's clients send it; the defaults of other clients are tested with
    the parameters.
    """
    asked = body(
        sampler_name="Euler a",
        scheduler="automatic",
        cfg_scale=7,
        hr_upscaler="Latent",
        hr_additional_modules=[],
        override_settings={"CLIP_stop_at_last_layers": 1},
        clip_skip=1,
        save_images=True,
        do_not_save_grid=False,
        script_name=None,
        eta=1.0,
    )
    answer = await answered(client.post(TEXT_TO_IMAGE, json=asked), run)
    assert answer.status_code == 200, answer.text


REFUSED: list[tuple[str, dict[str, Any], int, str]] = [
    (TEXT_TO_IMAGE, {"steps": 0}, 422, "steps"),
    (TEXT_TO_IMAGE, {"script_name": "x/y plot"}, 422, "script_name"),
    (TEXT_TO_IMAGE, {"alwayson_scripts": {"ControlNet": {"args": [{"a": 1}]}}}, 422, "scripts"),
    (TEXT_TO_IMAGE, {"sampler_name": "none such"}, 422, "sampler_name"),
    (TEXT_TO_IMAGE, {"cfg_scale": "NaN"}, 422, "cfg_scale"),
    (IMAGE_TO_IMAGE, {}, 404, "Init image not found"),
    (IMAGE_TO_IMAGE, {"init_images": "x"}, 400, "init_images"),
    (IMAGE_TO_IMAGE, {"init_images": [base64_png()] * 100}, 400, "1 to 16"),
    (IMAGE_TO_IMAGE, {"init_images": [7]}, 400, "init_images.0"),
    (IMAGE_TO_IMAGE, {"init_images": ["!!!"]}, 400, "base64"),
    (IMAGE_TO_IMAGE, {"init_images": ["ä"]}, 400, "base64"),
    (IMAGE_TO_IMAGE, {"init_images": ["http://127.0.0.1/a.png"]}, 400, "not fetched"),
    (IMAGE_TO_IMAGE, {"init_images": [base64.b64encode(b"GIF89a").decode()]}, 400, "not a PNG"),
    (IMAGE_TO_IMAGE, {"init_images": [base64_png()], "latent_mask": "x"}, 400, "latent_mask"),
]


async def test_what_cannot_be_done_is_said(client: Client) -> None:
    for path, asked, status, word in REFUSED:
        answer = await client.post(path, json=body(**asked))
        assert answer.status_code == status, answer.text
        assert word in json.dumps(answer.json()["detail"])


async def test_a_body_that_is_no_object_is_refused(client: Client) -> None:
    headers = {"Content-Type": "application/json"}
    for content in (b"[]", b"null", b"{", b'{"steps": NaN}', b'{"seed": 1e999}'):
        answer = await client.post(IMAGE_TO_IMAGE, content=content, headers=headers)
        assert answer.status_code == 400, content
        assert isinstance(answer.json()["detail"], str)


async def test_what_is_no_image_is_held_to_the_bound_of_other_bodies(
    edge: Edge, client: Client
) -> None:
    long = body(force_task_id="x" * edge.services.settings.http.max_body_bytes)
    answer = await client.post(TEXT_TO_IMAGE, json=long)
    assert answer.status_code == 413, answer.text
    assert edge.log.job_ids() == []


async def test_a_cancelled_job_has_the_pictures_that_were_made(
    edge: Edge, client: Client, answered: Answered
) -> None:
    async def cancel(job_id: str) -> None:
        await edge.start(job_id)
        await edge.store_image(job_id, data=PICTURE)
        await edge.execute(job_id, Cancel())
        await edge.execute(job_id, ConfirmCancel(actor=ACTOR))

    answer = await answered(client.post(TEXT_TO_IMAGE, json=body(batch_size=2)), cancel)
    assert answer.status_code == 200
    assert len(answer.json()["images"]) == 1


async def test_a_failed_job_is_an_error(edge: Edge, client: Client, answered: Answered) -> None:
    async def fail(job_id: str) -> None:
        await edge.execute(job_id, Quarantine("it was stopped"))

    answer = await answered(client.post(TEXT_TO_IMAGE, json=body()), fail)
    assert answer.status_code == 500
    assert answer.json()["error"] == "quarantined"


async def test_whoever_hangs_up_has_the_job_cancelled(edge: Edge, client: Client) -> None:
    call = asyncio.create_task(client.post(TEXT_TO_IMAGE, json=body()))
    [job_id] = await eventually(edge.log.job_ids)
    call.cancel()

    async def is_cancelled() -> bool:
        return (await edge.job(job_id)).end is not None

    await eventually(is_cancelled)


@pytest.mark.edge(owner_max_waits=1)
async def test_so_many_of_an_owner_wait_at_once(edge: Edge, client: Client) -> None:
    waits = asyncio.create_task(client.post(TEXT_TO_IMAGE, json=body()))
    await eventually(edge.log.job_ids)
    refused = await client.post(TEXT_TO_IMAGE, json=body())
    assert (refused.status_code, refused.json()["error"]) == (429, "too_many_waits")
    waits.cancel()


@pytest.mark.edge(adapter_max_wait_s=0.05)
async def test_after_its_time_the_answer_names_the_job(edge: Edge, client: Client) -> None:
    answer = await client.post(TEXT_TO_IMAGE, json=body())
    assert answer.status_code == 504
    assert edge.log.job_ids()[0] in answer.json()["detail"]


async def test_options_hold_for_the_later_requests_of_their_key(
    edge: Edge, client: Client, answered: Answered, run: Any
) -> None:
    kept = {"sd_model_checkpoint": "tiny [abc123]", "CLIP_stop_at_last_layers": 2}
    assert (await client.post("/sdapi/v1/options", json=kept)).status_code == 200

    async def settings_of(client: Client, **asked: Any) -> Any:
        answer = await answered(client.post(TEXT_TO_IMAGE, json=body(**asked)), run)
        return (await recorded(edge, answer)).request.get("override_settings", {})

    named = {"sd_model_checkpoint": "tiny.safetensors", "CLIP_stop_at_last_layers": 2}
    assert (await client.get("/sdapi/v1/options")).json().items() >= named.items()
    assert await settings_of(client) == named
    own = {"CLIP_stop_at_last_layers": 3, "sd_vae": None}
    both = named | {"CLIP_stop_at_last_layers": 3}
    assert (await settings_of(client, override_settings=own)).items() >= both.items()
    async with await edge.client("alice") as another_key:
        assert await settings_of(another_key) == {}
    await client.post("/sdapi/v1/options", json=dict.fromkeys(kept))
    assert await settings_of(client) == {}
