"""sd-backend-client, with ComfyUI's API and with the WebUI's: the same jobs on both."""

from __future__ import annotations

import os
from typing import Any

from PIL import Image, ImageDraw
from sd_backend_client import (
    A1111Webservice,
    ComfyUiWebservice,
    DiffusionParams,
    GenerationError,
    WorkflowValidationError,
    connect_to_backend,
)

URL, KEY, CHECKPOINT = os.environ["URL"], os.environ["KEY"], os.environ["CHECKPOINT"]


def params(**changes: Any) -> DiffusionParams:
    values = {
        "prompt": "a large red circle on white",
        "negative_prompt": "blurry",
        "sd_model_name": CHECKPOINT,
        "steps": 3,
        "cfg_scale": 7.0,
        "width": 64,
        "height": 64,
        "seed": 5,
        "sampler": "euler_ancestral",
    }
    return DiffusionParams(**(values | changes))


def make_pictures(backend: Any, name: str) -> None:
    seen: list[Any] = []
    made = backend.submit_txt2img(params()).wait(timeout=300, on_progress=seen.append)
    assert made.seeds == [5], made.seeds
    [picture] = made.images
    picture.save(f"{name}.png")
    several = backend.submit_txt2img(params(batch_size=2)).wait(timeout=300)
    assert [each.size for each in several.images] == [(64, 64)] * 2, several.images
    again = backend.submit_img2img(params(init_images=[picture], denoising_strength=0.5))
    assert again.wait(timeout=300).images[0].size == (64, 64)
    mask = Image.new("L", picture.size, 0)
    ImageDraw.Draw(mask).rectangle((16, 16, 48, 48), fill=255)
    painted = backend.submit_inpaint(
        params(init_images=[picture], mask=mask, mask_blur=0, denoising_strength=0.8)
    )
    [inside] = painted.wait(timeout=300).images
    assert inside.size == (64, 64)
    corner = (0, 0, 8, 8)
    before, after = (each.convert("RGB").crop(corner).tobytes() for each in (picture, inside))
    assert before == after


def ask(backend: Any) -> None:
    assert any(CHECKPOINT in each.name for each in backend.list_checkpoints())
    for listed in (
        *(backend.list_samplers, backend.list_schedulers),
        *(backend.list_vaes, backend.list_loras, backend.list_hypernetworks),
        backend.list_upscalers,
    ):
        listed()
    assert "euler" in {each.name.lower() for each in backend.list_samplers()}
    assert backend.get_capabilities().scheduler


def refusal(backend: Any, **changes: Any) -> str:
    try:
        backend.submit_txt2img(params(**changes)).wait(timeout=60)
    except (GenerationError, WorkflowValidationError) as error:
        return str(error)
    raise AssertionError(changes)


def main() -> None:
    comfyui = connect_to_backend(f"{URL}/key/{KEY}")
    assert isinstance(comfyui, ComfyUiWebservice)
    make_pictures(comfyui, "made-comfyui")
    ask(comfyui)
    assert "missing" in refusal(comfyui, sd_model_name="missing.safetensors")
    webui = A1111Webservice(URL, credentials_provider=lambda: ("me", KEY))
    make_pictures(webui, "made-webui")
    ask(webui)
    larger = webui.submit_upscale(Image.open("made-webui.png"), 128, 128).wait(timeout=300)
    assert larger.images[0].size == (128, 128), larger.images
    webui.progress_check()
    assert "unknown sampler" in refusal(webui, sampler="missing")


main()
