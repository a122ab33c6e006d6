"""Images for uploads over HTTP, and rows of uploads."""

from __future__ import annotations

import io
from datetime import datetime
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from events.ids import new_id
from events.store.records import Upload

MP4 = b"\x00\x00\x00\x18ftypisom\x00\x00\x02\x00isommp42" + b"\x00\x00\x00\x08mdat"
MOV = b"\x00\x00\x00\x08wide\x00\x00\x00\x08mdat"
MKV = b"\x1a\x45\xdf\xa3\x93\x42\x82\x88matroska"
WAV = b"RIFF\x28\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00" + bytes(24)
FLAC = b"fLaC\x00\x00\x00\x22"
OGG = b"OggS\x00\x02" + bytes(20)
MP3 = b"\xff\xfb\x90\x00" + bytes(20)


def png(colour: str = "red", size: tuple[int, int] = (3, 2)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, colour).save(out, "PNG")
    return out.getvalue()


def png_of(levels: NDArray[np.uint8]) -> bytes:
    """An image with these levels, (height, width, channels) or (height, width)."""
    out = io.BytesIO()
    Image.fromarray(levels).save(out, "PNG")
    return out.getvalue()


def upload_row(*, at: datetime, **changes: Any) -> Upload:
    """A row of an upload that was stored, and last used, at this time."""
    upload_id = changes.pop("id", None) or new_id()
    values: dict[str, Any] = {
        "id": upload_id,
        "owner": "alice",
        "name": "cat.png",
        "digest": "sha256:9f",
        "storage_key": f"uploads/{upload_id}.png",
        "width": 3,
        "height": 2,
        "size_bytes": 70,
        "created_at": at,
        "used_at": at,
    }
    return Upload(**(values | changes))


async def upload(client: httpx.AsyncClient, name: str = "cat.png", **form: Any) -> httpx.Response:
    data = form.pop("data", None) or png()
    return await client.post("/v1/uploads", files={"image": (name, data)}, data=form)


async def names(client: httpx.AsyncClient) -> list[str]:
    answer = await client.get("/v1/uploads")
    return [each["name"] for each in answer.json()["uploads"]]
