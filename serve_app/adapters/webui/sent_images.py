"""Images that requests carry in base64."""

from __future__ import annotations

import asyncio
import binascii
from base64 import b64decode
from typing import Any

from events.store.records import ApiKey, Upload
from serve_app.adapters.webui.errors import refused
from serve_app.api_error import ApiError
from serve_app.replica import Replica

_DATA_URL = "data:"
_HTTP = ("http://", "https://")


async def decoded(member: str, text: Any) -> bytes:
    """The bytes of an image. Raises ApiError 400."""
    if not isinstance(text, str) or not text:
        raise refused(f"{member} must be an image in base64.")
    if text.startswith(_HTTP):
        raise refused(f"{member} must be an image in base64: addresses are not fetched.")
    return await asyncio.to_thread(_decoded, member, text)


async def stored(replica: Replica, key: ApiKey, member: str, text: Any) -> Upload:
    """The image as an upload of the caller; the same image is one upload, however often it comes.

    Raises ApiError 400, and what `UploadStore.add` raises.
    """
    return await replica.upload_store.add_content(key.owner, await decoded(member, text))


def _decoded(member: str, text: str) -> bytes:
    if text.startswith(_DATA_URL):
        text = text.partition(",")[2]
    try:
        return b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise _no_base64(member) from error


def _no_base64(member: str) -> ApiError:
    return refused(f"{member} is not base64.")
