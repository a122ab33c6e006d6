"""Pictures by webuiapi, and what SillyTavern asks of a WebUI.

It runs where the client does, without anything of Darkroom.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import requests
import webuiapi
from PIL import Image

URL, KEY = os.environ["URL"], os.environ["KEY"]
SMALL: dict[str, Any] = {"steps": 2, "width": 64, "height": 64, "seed": 5}
LISTS = (
    *("options", "samplers", "schedulers", "sd-models", "sd-vae", "upscalers"),
    *("latent-upscale-modes", "progress", "loras", "embeddings", "hypernetworks"),
    *("prompt-styles", "cmd-flags", "memory", "scripts", "script-info"),
)


def make_pictures(api: Any) -> None:
    made = api.txt2img(prompt="a large red circle on white", **SMALL)
    assert made.image.size == (64, 64), made.image
    assert "Steps: 2" in made.info["infotexts"][0], made.info
    assert made.info["all_seeds"] == [5], made.info
    assert api.png_info(made.image).info == made.info["infotexts"][0]
    several = api.txt2img(prompt="a circle", batch_size=2, n_iter=2, **SMALL)
    assert len(several.images) == 4, several.images
    larger = api.txt2img(prompt="a circle", enable_hr=True, hr_scale=1.5, **SMALL)
    assert larger.image.size == (96, 96), larger.image
    again = api.img2img(images=[made.image], prompt="a blue circle", **SMALL)
    assert again.image.size == (64, 64), again.image
    mask = Image.new("L", (64, 64))
    mask.paste(255, (16, 16, 48, 48))
    inpainted = api.img2img(
        images=[made.image], mask_image=mask, mask_blur=0, prompt="a blue circle", **SMALL
    )
    corner = (0, 0, 16, 16)
    assert inpainted.image.crop(corner).tobytes() == made.image.crop(corner).tobytes()
    enlarged = api.extra_single_image(made.image, upscaler_1=webuiapi.Upscaler.Lanczos)
    assert enlarged.image.size == (128, 128), enlarged.image
    both = api.extra_batch_images([made.image, again.image], upscaler_1="Nearest")
    assert [each.size for each in both.images] == [(128, 128)] * 2, both.images


def ask(api: Any) -> None:
    assert "Euler a" in api.util_get_sampler_names()
    assert api.util_get_current_model() in api.util_get_model_names()
    api.util_set_model(api.util_get_current_model())
    api.refresh_checkpoints()
    api.util_wait_for_ready(check_interval=0.1)
    for path in LISTS:
        answer = requests.get(f"{URL}/sdapi/v1/{path}", auth=("me", KEY), timeout=60)
        assert answer.status_code == 200, (path, answer.text)
    refused = requests.post(
        f"{URL}/sdapi/v1/txt2img", auth=("me", KEY), json={"script_name": "x/y plot"}, timeout=60
    )
    assert refused.status_code == 422, refused.text
    assert "script_name" in refused.text, refused.text


def interrupt(api: Any) -> None:
    """A long job is seen on its way, and ended."""
    found: list[Any] = []
    asked = {"steps": 150, "width": 512, "height": 512, "n_iter": 2}
    work = threading.Thread(target=lambda: found.append(api.txt2img(prompt="a circle", **asked)))
    work.start()
    end_at = time.monotonic() + 120
    while not (seen := api.get_progress())["state"]["sampling_step"]:
        assert work.is_alive(), found
        assert time.monotonic() < end_at, seen
        time.sleep(0.1)
    assert 0 < seen["progress"] <= 1, seen
    api.interrupt()
    work.join(120)
    assert found, "it was not ended"
    assert len(found[0].images) < 2, found[0].images


def main() -> None:
    place = urlsplit(URL)
    api = webuiapi.WebUIApi(host=place.hostname, port=place.port, username="me", password=KEY)
    make_pictures(api)
    ask(api)
    interrupt(api)
    sys.stdout.write("completed\n")


main()
