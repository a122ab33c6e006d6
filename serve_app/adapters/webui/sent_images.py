"""Images that requests carry in base64."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from events.store.records import ApiKey, Upload
from serve_app.adapters.webui.errors import refused
from serve_app.refusals import InvalidImage
from serve_app.replica import Replica
from serve_app.uploads import sent_image
from serve_app.uploads.sent_image import SentAs, sent_as


async def decoded(member: str, text: Any) -> bytes:
    """The bytes of an image. Raises ApiError 400."""
    if not isinstance(text, str) or not text:
        raise refused(f"{member} must be an image in base64.")
    if sent_as(text) is SentAs.URL:
        raise refused(f"{member} must be an image in base64: addresses are not fetched.")
    # The body was bounded as it was read, and the store bounds what becomes an upload.
    decode = partial(sent_image.decoded, text, max_bytes=len(text))
    try:
        return await asyncio.to_thread(decode)
    except InvalidImage as error:
        raise refused(f"{member} must be an image in base64. {error}") from error


async def stored(replica: Replica, key: ApiKey, member: str, text: Any) -> Upload:
    """The image as an upload of the caller; the same image is one upload, however often it comes.

    Raises ApiError 400, and what `UploadStore.add` raises.
    """
    return await replica.upload_store.add_content(key.owner, await decoded(member, text))
