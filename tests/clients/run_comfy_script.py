"""comfy-script: a graph as a Python script, with the nodes that the service declares."""

from __future__ import annotations

import json
import os
from typing import Any

import aiohttp
from comfy_script import client, runtime

PROMPT = json.loads(os.environ["PROMPT"])


def session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(headers={"Authorization": f"Bearer {os.environ['KEY']}"})


def main() -> None:
    runtime.load(client.Client(os.environ["URL"], session_factory=session))
    from comfy_script.runtime import nodes  # it exists now

    def values(id: str) -> dict[str, Any]:
        inputs = PROMPT[id]["inputs"]
        return {name: value for name, value in inputs.items() if not isinstance(value, list)}

    with runtime.Workflow(wait=True) as workflow:
        model, clip, vae = nodes.CheckpointLoaderSimple(**values("4"))
        positive = nodes.CLIPTextEncode(clip=clip, **values("6"))
        negative = nodes.CLIPTextEncode(clip=clip, **values("7"))
        latent = nodes.EmptyLatentImage(**values("5"))
        latent = nodes.KSampler(
            model=model, positive=positive, negative=negative, latent_image=latent, **values("3")
        )
        saved = nodes.SaveImage(images=nodes.VAEDecode(samples=latent, vae=vae), **values("9"))
    result = workflow.task.wait_result(saved)
    result[0].save("made.png", pnginfo=None)
    broken = nodes.EmptyLatentImage(width=-1, height=64, batch_size=1)
    with runtime.Workflow() as refused:
        nodes.SaveLatent(samples=broken, filename_prefix="x")
    assert refused.task is None


main()
