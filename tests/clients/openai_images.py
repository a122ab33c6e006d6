"""Pictures by OpenAI's own client: made, edited, streamed, refused.

It runs where the client does, without anything of Darkroom.
"""

from __future__ import annotations

import base64
import os
import struct
import sys
import zlib
from collections.abc import Callable

from openai import APIStatusError, AuthenticationError, BadRequestError, NotFoundError, OpenAI

PNG = b"\x89PNG\r\n\x1a\n"
FEW = {"extra_body": {"steps": 4, "seed": 7}}


def client(key: str) -> OpenAI:
    return OpenAI(base_url=os.environ["URL"] + "/v1", api_key=key, timeout=300, max_retries=0)


def mask(side: int) -> bytes:
    """A PNG whose left half is transparent."""
    row = b"\0" + (b"\0\0\0\0" * (side // 2)) + (b"\0\0\0\xff" * (side - side // 2))
    head = struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(row * side)), (b"IEND", b""))
    return PNG + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def makes(caller: OpenAI) -> bytes:
    models = [model.id for model in caller.models.list()]
    assert "default" in models, models
    assert caller.models.retrieve(models[-1]).id == models[-1]
    made = caller.images.generate(
        prompt="a large red circle on white", size="64x64", n=2, model=models[-1], **FEW
    )
    pictures = [base64.b64decode(each.b64_json) for each in made.data]
    assert len(set(pictures)) == 2
    assert all(picture.startswith(PNG) for picture in pictures)
    linked = caller.images.generate(
        prompt="a circle", size="64x64", response_format="url", output_format="jpeg", **FEW
    )
    assert "/files/" in linked.data[0].url, linked
    return pictures[0]


def edits(caller: OpenAI, picture: bytes) -> None:
    image, hole = ("a.png", picture), ("m.png", mask(64))
    anew = caller.images.edit(image=image, prompt="a blue square", **FEW)
    inside = caller.images.edit(image=[image], mask=hole, prompt="a blue square", n=2, **FEW)
    assert len(anew.data) == 1
    assert len(inside.data) == 2
    edited = list(caller.images.edit(image=image, prompt="a circle", stream=True, **FEW))
    assert [event.type for event in edited] == ["image_edit.completed"]


def streams(caller: OpenAI) -> None:
    kinds = []
    for event in caller.images.generate(
        prompt="a circle",
        size="64x64",
        stream=True,
        partial_images=2,
        extra_body={"steps": 60},
    ):
        kinds.append(event.type)
        assert base64.b64decode(event.b64_json)
    assert kinds[-1] == "image_generation.completed", kinds


def is_refused(caller: OpenAI) -> None:
    for error, call in (
        (AuthenticationError, lambda: client("wrong").images.generate(prompt="x")),
        (NotFoundError, lambda: caller.images.generate(prompt="x", model="nobodys")),
        (BadRequestError, lambda: caller.images.generate(prompt="x", background="transparent")),
    ):
        assert refusal(error, call).code


def refusal(error: type[APIStatusError], call: Callable[[], object]) -> APIStatusError:
    try:
        call()
    except error as refused:
        return refused
    raise AssertionError(error)


def main() -> None:
    caller = client(os.environ["KEY"])
    edits(caller, makes(caller))
    streams(caller)
    is_refused(caller)
    sys.stdout.write("completed\n")


main()
