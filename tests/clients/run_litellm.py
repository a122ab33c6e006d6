"""LiteLLM, with OpenAI's API at another address: pictures made, edited and refused."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import litellm

PLACE = {"api_base": os.environ["URL"] + "/v1", "api_key": os.environ["KEY"], "timeout": 300}
FEW = {"size": "64x64", "quality": "low"}
PROMPT = "a large red circle on white"


def main() -> None:
    made = litellm.image_generation(
        prompt=PROMPT, model="openai/gpt-image-1", n=2, extra_body={"seed": 7}, **FEW, **PLACE
    )
    pictures = [base64.b64decode(each.b64_json) for each in made.data]
    assert len(set(pictures)) == 2
    Path("made.png").write_bytes(pictures[0])
    linked = litellm.image_generation(prompt=PROMPT, model="openai/dall-e-3", size="64x64", **PLACE)
    assert "/files/" in linked.data[0].url, linked
    with Path("made.png").open("rb") as image:
        edited = litellm.image_edit(
            image=[image], prompt=PROMPT, model="openai/gpt-image-1", **FEW, **PLACE
        )
    Path("edited.png").write_bytes(base64.b64decode(edited.data[0].b64_json))
    assert "missing" in refusal()


def refusal() -> str:
    try:
        litellm.image_generation(prompt=PROMPT, model="openai/missing", **PLACE)
    except litellm.NotFoundError as error:
        return str(error)
    raise AssertionError("a model that does not exist")


main()
