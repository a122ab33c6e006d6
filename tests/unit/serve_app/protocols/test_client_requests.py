"""The requests of other products' programs, as the programs of `make clients` send them.

Each request also has the members that its program sends without being told to.
"""

from __future__ import annotations

import base64
import json
from functools import partial
from typing import Any

import pytest

from tests.support.edge import Client, Edge
from tests.support.generate_bodies import CHECKPOINT, workflow_body
from tests.support.uploads import png
from tests.unit.serve_app.protocols.conftest import Answered

PROMPT = "a large red circle on white"
IMAGE = "data:image/png;base64," + base64.b64encode(png()).decode()
MASK = base64.b64encode(png("white")).decode()
UUID = "cb162c82-4571-4e4c-bb24-c6cbd4401e4c"

STABLE_DIFFUSION_API = {
    "prompt": PROMPT,
    "negative_prompt": "",
    "styles": [],
    "seed": 5,
    "steps": 3,
    "subseed": -1,
    "subseed_strength": 0,
    "seed_resize_from_h": 0,
    "seed_resize_from_w": 0,
    "batch_size": 1,
    "n_iter": 1,
    "cfg_scale": 7,
    "width": 64,
    "height": 64,
    "restore_faces": False,
    "tiling": False,
    "sampler_name": "Euler a",
    "do_not_save_samples": False,
    "do_not_save_grid": False,
    "eta": 1,
    "s_churn": 0,
    "s_tmax": 0,
    "s_tmin": 0,
    "s_noise": 1,
    "override_settings": {},
    "override_settings_restore_afterwards": True,
    "script_name": None,
    "script_args": [],
    "alwayson_scripts": {"ControlNet": {"args": []}},
    "send_images": True,
    "save_images": False,
    "use_deprecated_controlnet": False,
}
SD_BACKEND_CLIENT = {
    "prompt": PROMPT,
    "negative_prompt": "blurry",
    "seed": 5,
    "steps": 3,
    "cfg_scale": 7.0,
    "batch_size": 1,
    "n_iter": 1,
    "width": 64,
    "height": 64,
    "inpainting_fill": 1,
    "restore_faces": False,
    "tiling": False,
    "send_images": True,
    "save_images": False,
    "force_task_id": "task(txt2img-1)",
    "sampler_name": "Euler a",
    "scheduler": "normal",
    "override_settings": {"sd_model_checkpoint": CHECKPOINT},
    "alwayson_scripts": {},
}
NODE_SD_WEBUI = {
    "prompt": PROMPT,
    "negative_prompt": "blurry",
    "seed": 5,
    "sampler_name": "Euler a",
    "steps": 3,
    "width": 64,
    "height": 64,
}
WEBUI: dict[str, tuple[str, dict[str, Any]]] = {
    "stable-diffusion-api": (
        "txt2img",
        STABLE_DIFFUSION_API
        | {"enable_hr": False, "hr_scale": 2, "hr_upscaler": "Latent", "hr_second_pass_steps": 0}
        | {"hr_resize_x": 0, "hr_resize_y": 0, "denoising_strength": 0.7}
        | {"firstphase_width": 0, "firstphase_height": 0},
    ),
    "stable-diffusion-api with an image": (
        "img2img",
        STABLE_DIFFUSION_API
        | {"init_images": [IMAGE], "resize_mode": 0, "denoising_strength": 0.75, "mask": None}
        | {"image_cfg_scale": 1.5, "mask_blur": 4, "inpainting_fill": 0, "inpaint_full_res": True}
        | {"inpaint_full_res_padding": 0, "inpainting_mask_invert": 0}
        | {"initial_noise_multiplier": 1, "include_init_images": False},
    ),
    "sd-backend-client": ("txt2img", SD_BACKEND_CLIENT),
    "sd-backend-client with a mask": (
        "img2img",
        SD_BACKEND_CLIENT
        | {"init_images": [IMAGE], "mask": MASK, "mask_blur": 0}
        | {"denoising_strength": 0.8},
    ),
    "node-sd-webui": ("txt2img", NODE_SD_WEBUI),
    "node-sd-webui, larger": (
        "txt2img",
        NODE_SD_WEBUI
        | {"enable_hr": True, "denoising_strength": 0.7, "hr_upscaler": "Latent", "hr_scale": 2}
        | {"hr_resize_x": 0, "hr_resize_y": 0, "hr_second_pass_steps": 2},
    ),
    "LibreChat": (
        "txt2img",
        {"prompt": PROMPT, "negative_prompt": "blurry", "cfg_scale": 4.5, "steps": 22}
        | {"width": 1024, "height": 1024},
    ),
}


@pytest.mark.parametrize(("path", "body"), WEBUI.values(), ids=WEBUI)
async def test_a_program_for_the_webui_gets_what_it_requests(
    edge: Edge, client: Client, answered: Answered, path: str, body: dict[str, Any]
) -> None:
    call = client.post(f"/sdapi/v1/{path}", json=body)
    answer = await answered(call, partial(edge.run, data=png()))
    assert answer.status_code == 200, answer.text
    info = json.loads(answer.json()["info"])
    request = (await edge.job(info["request_id"])).submitted.request
    members = {"prompt", "width", "height", "steps", "cfg_scale", "seed", "sampler_name"}
    for member in members & body.keys():
        assert request[member] == body[member], member
    assert "notes" not in info


OPENAI: dict[str, dict[str, Any]] = {
    "AI SDK": {"model": "gpt-image-1", "n": 1, "size": "64x64", "quality": "low"},
    "LiteLLM": {"model": "dall-e-3", "size": "64x64"},
    "LibreChat": {
        "model": "gpt-image-1",
        "n": 1,
        "background": "auto",
        "output_format": "png",
        "quality": "auto",
        "size": "auto",
    },
    "LibreChat with DALL-E 3": {
        "model": "dall-e-3",
        "quality": "standard",
        "style": "vivid",
        "size": "1024x1024",
        "n": 1,
    },
}


@pytest.mark.parametrize("body", OPENAI.values(), ids=OPENAI)
async def test_a_program_for_openais_images_gets_what_it_requests(
    edge: Edge, client: Client, answered: Answered, body: dict[str, Any]
) -> None:
    call = client.post("/v1/images/generations", json={"prompt": PROMPT, **body})
    answer = await answered(call, edge.run)
    request = (await edge.submitted(answer)).request
    assert request["prompt"] == PROMPT
    if body["size"] != "auto":
        assert f"{request['width']}x{request['height']}" == body["size"]
    [image] = answer.json()["data"]
    assert list(image) == ["url" if body["model"] == "dall-e-3" else "b64_json"]


@pytest.mark.parametrize("field", ["image", "image[]"])
async def test_an_edit_without_a_name_of_its_file_is_taken(
    edge: Edge, client: Client, answered: Answered, field: str
) -> None:
    """The AI SDK calls each file `blob`."""
    members = {"model": "gpt-image-1", "quality": "auto", "size": "auto", "prompt": PROMPT}
    files = [(field, ("blob", png(size=(64, 64)), "image/png"))]
    call = client.post("/v1/images/edits", data=members, files=files)
    graph = (await edge.submitted(await answered(call, edge.run))).request["prompt"]
    assert graph["positive"]["inputs"]["text"] == PROMPT


COMFYUI: dict[str, dict[str, Any]] = {
    "comfy-ui-client": {"client_id": UUID},
    "@stable-canvas/comfyui-client": {
        "client_id": UUID,
        "extra_data": {"extra_pnginfo": {}},
    },
    "comfy-script": {
        "client_id": UUID,
        "extra_data": {"extra_pnginfo": {"ComfyScriptSource": "with Workflow():\n    …"}},
    },
    "comfyui-mcp": {},
    "comfyui-skill-cli": {"client_id": UUID, "number": -1.0},
}


@pytest.mark.parametrize("members", COMFYUI.values(), ids=COMFYUI)
async def test_a_program_for_comfyui_gets_what_it_requests(
    edge: Edge, client: Client, members: dict[str, Any]
) -> None:
    graph = json.dumps(workflow_body()["prompt"]).replace('"9": ', '"SaveImage.0": ')
    answer = await client.post("/prompt", json={"prompt": json.loads(graph), **members})
    assert answer.status_code == 200, answer.text
    assert answer.json()["node_errors"] == {}
    id = answer.json()["prompt_id"]
    await edge.run(id, node="SaveImage.0")  # comfy-script names nodes like this
    [image] = (await client.get(f"/history/{id}")).json()[id]["outputs"]["SaveImage.0"]["images"]
    # comfyui-mcp leaves out the subfolder.
    shown = await client.get("/api/view", params={"filename": image["filename"]})
    assert shown.content == b"pixels"


FOUND = [
    *("/system_stats", "/prompt", "/queue", "/history?max_items=200", "/embeddings", "/extensions"),
    *("/models", "/models/configs", "/models/upscale_models", "/experiment/models", "/features"),
    *("/object_info/KSampler", "/object_info/Primitive%20boolean%20%5BCrystools%5D"),
    *("/userdata?dir=workflows&recurse=true&split=", "/v2/userdata?dir=workflows"),
    *("/internal/logs/raw", "/workflow_templates"),
]
ABSENT = ["/manager/version", "/node_replacements", "/workflow/convert"]
"""Routes of packages, without which the programs work."""


async def test_what_the_programs_read_is_there_or_absent(client: Client) -> None:
    for path in FOUND:
        answer = await client.get(path)
        assert answer.status_code == 200, path
        answer.json()
    for path in ABSENT:
        assert (await client.get(path)).status_code in {404, 405}, path
