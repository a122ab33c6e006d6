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
from events.store.records import Scope
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


def nulls(value: Any) -> bool:
    """Whether a null is anywhere in a JSON value."""
    if isinstance(value, dict | list):
        return any(map(nulls, value.values() if isinstance(value, dict) else value))
    return value is None


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"n_iter": 2, "batch_size": 2},
        {"seed": 2**63, "n_iter": 2},
        {"subseed_strength": 0.5, "n_iter": 2},
        {"enable_hr": True, "width": None, "height": None},
    ],
)
async def test_the_parameters_have_the_types_that_typed_clients_expect(
    client: Client, answered: Answered, run: Any, asked: dict[str, Any]
) -> None:
    images = asked.get("n_iter", 1) * asked.get("batch_size", 1)
    answer = await answered(
        client.post(TEXT_TO_IMAGE, json=body(**asked)), partial(run, images=images)
    )
    info = json.loads(answer.json()["info"])
    assert not nulls(info)
    for name in ("sd_model_name", "sd_model_hash", "sd_vae_name", "sd_vae_hash", "version"):
        assert isinstance(info[name], str), name
    assert info["sd_model_name"]
    assert info["version"].startswith("Darkroom ")
    assert len(info["all_subseeds"]) == len(info["all_seeds"]) == images
    assert all(0 <= each < 2**32 for each in info["all_subseeds"])
    assert info["subseed"] == info["all_subseeds"][0]
    assert info["width"] == info["height"] > 0


async def test_a_given_subseed_is_told_as_it_is(
    client: Client, answered: Answered, run: Any
) -> None:
    asked = body(subseed=2**32 - 1, n_iter=2)
    answer = await answered(client.post(TEXT_TO_IMAGE, json=asked), partial(run, images=2))
    assert json.loads(answer.json()["info"])["all_subseeds"] == [2**32 - 1, 2**32]


async def test_a_lora_that_is_left_out_is_told(
    edge: Edge, client: Client, answered: Answered, run: Any
) -> None:
    notes = ["lora_left_out: skétch [v2]", "network_left_out: hypernet:x"]
    prompt = "a <lora:skétch [v2]:0.5> <hypernet:x:1> <lora:skétch [v2]:1> cat"
    answer = await answered(client.post(TEXT_TO_IMAGE, json=body(prompt=prompt)), run)
    info = json.loads(answer.json()["info"])
    assert info["notes"] == notes
    assert json.loads(answer.headers["Darkroom-Notes"]) == notes
    result = (await client.get(f"/v1/jobs/{info['request_id']}/result")).json()
    assert result["notes"] == notes
    again = await answered(client.post(TEXT_TO_IMAGE, json=body()), run)
    assert "Darkroom-Notes" not in again.headers
    assert "notes" not in json.loads(again.json()["info"])


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


ASKING_FOR_NOTHING: list[dict[str, Any]] = [
    {"styles": [""], "script_name": "", "script_args": [], "hr_sampler_name": "", "hr_prompt": ""},
    {"enable_hr": False, "hr_upscaler": "text", "hr_sampler_name": "text", "styles": []},
    {
        "seed_enable_extras": True,
        "subseed": 5000000,
        "subseed_strength": 0,
        "s_tmax": None,
        "seed_resize_from_h": -1,
        "seed_resize_from_w": -1,
        "s_noise": 1,
        "script_name": None,
        "override_settings_restore_afterwards": True,
    },
    {
        "alwayson_scripts": {
            "Extra options": {"args": []},
            "Refiner": {"args": [False, "None", 0.5]},
            "Seed": {"args": [7, False, -1, 0, 0, 0]},
            "Sampler": {"args": [4, "Euler", "Automatic"]},
        }
    },
    {"face_restorer": "None", "clip_layer": -1, "watermark": False, "webhook": ""},
]


@pytest.mark.parametrize("sent", ASKING_FOR_NOTHING, ids=range(len(ASKING_FOR_NOTHING)))
async def test_members_that_ask_for_nothing_change_nothing(
    edge: Edge, client: Client, answered: Answered, run: Any, sent: dict[str, Any]
) -> None:
    asked = body(seed=7, sampler_name="Euler")
    alone = await answered(client.post(TEXT_TO_IMAGE, json=asked), run)
    both = await answered(client.post(TEXT_TO_IMAGE, json=asked | sent), run)
    graphs = [(await recorded(edge, each)).graph for each in (alone, both)]
    assert graphs[0] == graphs[1]


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


async def create_comfyui(edge: Edge, **members: Any) -> None:
    server = {"engine": "comfyui", "comfyui_url": "http://127.0.0.1:8188"}
    async with await edge.client("root", scopes=[Scope.ADMIN]) as admin:
        answer = await admin.post("/v1/endpoints", json={"id": "comfy", **server, **members})
    assert answer.status_code == 201, answer.text


async def test_a_request_for_a_comfyui_server_has_its_compatibility(
    edge: Edge, client: Client, answered: Answered
) -> None:
    await create_comfyui(edge, checkpoint="xl.ckpt")
    url = f"{TEXT_TO_IMAGE}?endpoint=comfy"
    run = partial(edge.run, data=png(), images=2)

    answer = await answered(client.post(url, json=body(seed=7, n_iter=2)), run)

    submitted = await recorded(edge, answer)
    assert (submitted.endpoint, submitted.images) == ("comfy", 2)
    assert (submitted.terms.compatibility, "compatibility" in submitted.request) == (
        "comfyui",
        False,
    )
    info = json.loads(answer.json()["info"])
    assert info["sd_model_name"] == "xl.ckpt"
    for seed, text in zip((7, 8), info["infotexts"], strict=True):
        assert text.startswith("a cat\nSteps: 4, Sampler: Euler, Schedule type: Automatic")
        assert f"Seed: {seed}, Size: 64x64, Model: xl.ckpt, Version: Darkroom" in text
    refused = await client.post(url, json=body(compatibility="webui", subseed_strength=0.5))
    assert refused.status_code == 422
    assert "compatibility" in refused.text
    assert "subseed_strength" in refused.text


async def test_options_and_lists_have_the_checkpoints_of_a_comfyui_server(
    edge: Edge, client: Client
) -> None:
    await create_comfyui(edge, checkpoints=["a.ckpt", "b.ckpt"])
    url = "/sdapi/v1/options?endpoint=comfy"

    assert (await client.get(url)).json()["sd_model_checkpoint"] == "a.ckpt"
    changed = await client.post(url, json={"sd_model_checkpoint": "b"})
    assert changed.status_code == 200, changed.text
    assert (await client.get(url)).json()["sd_model_checkpoint"] == "b.ckpt"
    listed = (await client.get("/sdapi/v1/sd-models?endpoint=comfy")).json()
    assert [each["title"] for each in listed] == ["a.ckpt", "b.ckpt"]
    assert (await client.get("/sdapi/v1/loras?endpoint=comfy")).json() == []
    unknown = await client.post(url, json={"sd_model_checkpoint": "c"})
    assert (unknown.status_code, "a.ckpt, b.ckpt" in unknown.text) == (400, True)
