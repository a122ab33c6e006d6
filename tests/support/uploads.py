"""Images for uploads over HTTP."""

from __future__ import annotations

import io
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray
from PIL import Image


def png(colour: str = "red", size: tuple[int, int] = (3, 2)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, colour).save(out, "PNG")
    return out.getvalue()


def png_of(levels: NDArray[np.uint8]) -> bytes:
    """An image with these levels, (height, width, channels) or (height, width)."""
    out = io.BytesIO()
    Image.fromarray(levels).save(out, "PNG")
    return out.getvalue()


async def upload(client: httpx.AsyncClient, name: str = "cat.png", **form: Any) -> httpx.Response:
    data = form.pop("data", None) or png()
    return await client.post("/v1/uploads", files={"image": (name, data)}, data=form)


async def names(client: httpx.AsyncClient) -> list[str]:
    answer = await client.get("/v1/uploads")
    return [each["name"] for each in answer.json()["uploads"]]
