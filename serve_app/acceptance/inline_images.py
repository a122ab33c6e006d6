"""Removes inline images from a request body, and stores them as uploads of the owner.

An inline image is a data URL, base64 or an https URL. Placeholders replace the inline images before
the body is checked, so that the checks do not process these long texts.
"""

from __future__ import annotations

import asyncio
import binascii
import re
import secrets
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any, Protocol

from engine.interface import Catalogue, FieldError, GraphInvalid, ParametersInvalid
from events.errors import FetchFailed
from serve_app.fair_threads import QUICK_BYTES, FairSemaphore, FairThreads
from serve_app.refusals import ImageNotFetched, InvalidImage
from serve_app.upload_store import UploadStore
from settings.constant import constant

_FETCH_TIMEOUT_S = constant("FETCH_TIMEOUT_S", 20.0)
"""The time limit in seconds for fetching all images of one request."""
_FETCHES = constant("FETCH_IN_FLIGHT", 8)
"""The largest number of images that one replica fetches and stores at the same time, which are all
in memory.
"""
_FETCHES_PER_OWNER = constant("FETCH_PER_OWNER", 4)
_LONGEST_NAME = 1024
"""The largest number of characters of an upload name. A longer text is an inline image."""
_SHORTEST_IMAGE = 64
_BEGINNINGS = ("iVBORw0KGgo", "/9j/", "UklGR")
"""The first characters of PNG, JPEG and WebP files in base64."""
_URL = re.compile(r"https?://", re.IGNORECASE)
_DATA_URL = re.compile(
    r"data:(?P<type>[a-z0-9.+-]*/?[a-z0-9.+-]*)(?:;[^;,]*)*?(?P<base64>;base64)?,", re.IGNORECASE
)
_LONGEST_HEAD = 200
TYPES = frozenset(
    {"image/png", "image/jpeg", "image/jpg", "image/webp", "application/octet-stream"}
    | {"binary/octet-stream"}
)
"""The media types that a data URL may name. The format of an image is detected from its bytes."""
_SPACE = " \t\r\n"
_CHUNK_CHARS = 2**20
"""The number of characters that are decoded in one call, a multiple of four. A call blocks all
other Python threads.
"""
_PLACEHOLDER = f"\0sent {secrets.token_hex(8)} {{}}"
"""The placeholder of an inline image. No upload name contains a null byte."""
_LIST, _MASK = "init_images", "mask"
"""The members of a diffusion request that name uploads."""
_TOO_MANY = "too_many_images"


class InlineForm(Enum):
    URL = auto()
    DATA_URL = auto()
    BASE64 = auto()


def inline_form(text: str) -> InlineForm | None:
    """Return the form of an inline image, or None if the text is the name of an upload."""
    if _URL.match(text):
        return InlineForm.URL
    if text[:5].lower() == "data:":
        return InlineForm.DATA_URL
    is_image = text.startswith(_BEGINNINGS) and len(text) >= _SHORTEST_IMAGE and "." not in text
    return InlineForm.BASE64 if is_image or len(text) > _LONGEST_NAME else None


def decoded(text: str, *, max_bytes: int) -> bytes:
    """Decode a data URL or base64. Raises InvalidImage. Blocks the thread for some milliseconds."""
    if inline_form(text) is InlineForm.DATA_URL:
        text = text[_end_of_head(text) :]
    if len(text) // 4 * 3 > max_bytes + 3:
        raise InvalidImage(f"The image has more than {max_bytes} bytes.")
    for space in _SPACE:
        text = text.replace(space, "")
    text += "=" * (-len(text) % 4)
    try:
        chunks = (text[at : at + _CHUNK_CHARS] for at in range(0, len(text), _CHUNK_CHARS))
        data = b"".join([binascii.a2b_base64(each, strict_mode=True) for each in chunks])
    except ValueError as error:
        raise InvalidImage("The image is not valid base64.") from error
    if len(data) > max_bytes:
        raise InvalidImage(f"The image has more than {max_bytes} bytes.")
    return data


def _end_of_head(text: str) -> int:
    head = _DATA_URL.match(text[:_LONGEST_HEAD])
    if head is None or head["base64"] is None:
        raise InvalidImage("The data URL must have the form data:image/png;base64,…")
    if head["type"].lower() not in TYPES:
        raise InvalidImage("The data URL must be of image/png, image/jpeg or image/webp.")
    return head.end()


class Fetch(Protocol):
    def __call__(self, url: str, *, timeout_s: float) -> Awaitable[bytes]:
        """Download the content of an https URL. Raises FetchFailed."""


class InlineImageStore:
    def __init__(
        self,
        store: UploadStore,
        threads: FairThreads,
        fetch: Fetch | None,
        *,
        max_bytes: int,
    ) -> None:
        """If `fetch` is None, URLs are refused. `max_bytes` limits the size of an image."""
        self._store = store
        self._threads = threads
        self._fetch = fetch
        self._max_bytes = max_bytes
        self._fetches = FairSemaphore(_FETCHES, per_owner=_FETCHES_PER_OWNER)

    def give_up_at(self) -> float:
        """Return the event loop time until which the images of a new request may be fetched."""
        return asyncio.get_running_loop().time() + _FETCH_TIMEOUT_S

    async def name(self, owner: str, image: str, *, give_up_at: float | None = None) -> str:
        """Store an inline image as an upload, and return the name of the upload.

        All images of one request share one result of `give_up_at()`. Raises UploadRefused, Busy,
        DatabaseUnavailable, ImageStoreUnavailable.
        """
        how = inline_form(image)
        if how is None:
            raise InvalidImage("The value is neither a data URL nor base64 nor an https URL.")
        if how is InlineForm.URL:
            return await self._name_of_url(owner, image, give_up_at or self.give_up_at())
        decode = partial(decoded, image, max_bytes=self._max_bytes)
        is_quick = len(image) <= QUICK_BYTES
        data = await self._threads.run(owner, decode, is_quick=is_quick)
        return (await self._store.add_content(owner, data)).name

    async def _name_of_url(self, owner: str, url: str, give_up_at: float) -> str:
        """Fetch and store an image."""
        if self._fetch is None:
            raise ImageNotFetched(
                "This service does not fetch images from URLs. Send the image as a data URL."
            )
        # The semaphore also limits the images in memory, so it includes the storing.
        async with self._fetches.acquire(owner):
            data = await self._fetched(self._fetch, url, give_up_at)
            return (await self._store.add_content(owner, data)).name

    @staticmethod
    async def _fetched(fetch: Fetch, url: str, give_up_at: float) -> bytes:
        left_s = give_up_at - asyncio.get_running_loop().time()
        try:
            return await fetch(url, timeout_s=max(0.0, left_s))
        except FetchFailed as error:
            raise ImageNotFetched(f"The image could not be fetched: {error}.") from error


@dataclass(frozen=True, slots=True)
class InlineImage:
    placeholder: str
    """The text that replaces the image in the request until the image is stored."""
    image: str
    member: str = ""
    """The first member of a diffusion request with this image; empty for a workflow."""


@dataclass(frozen=True, slots=True)
class ExtractedImages:
    rest: Any
    """The prompt or body with placeholders instead of the images."""
    images: tuple[InlineImage, ...] = ()
    chars: int = 0
    """The total length of all inline images. A repeated image counts each time."""


def without_images(prompt: object, catalogue: Catalogue, *, most: int) -> ExtractedImages:
    """Replace the inline images in an unchecked prompt by placeholders.

    Raises GraphInvalid if there are more than `most` images.
    """
    if not isinstance(prompt, dict):
        return ExtractedImages(prompt)
    by_text: dict[str, InlineImage] = {}
    changed: dict[str, Any] = {}
    chars = 0
    for node_id, node in prompt.items():
        sent = _inline_inputs(node, catalogue)
        for image in sent.values():
            placeholder = _PLACEHOLDER.format(len(by_text))
            by_text.setdefault(image, InlineImage(placeholder, image))
            chars += len(image)
        if len(by_text) > most:
            raise GraphInvalid(_TOO_MANY, "The prompt has too many inline images", _many(most))
        if sent:
            placeholders = {name: by_text[image].placeholder for name, image in sent.items()}
            changed[node_id] = {**node, "inputs": {**node["inputs"], **placeholders}}
    return ExtractedImages({**prompt, **changed}, tuple(by_text.values()), chars)


def _many(most: int) -> str:
    return f"at most {most} are allowed: upload the images, and use the names of the uploads"


def without_member_images(body: object, *, most: int) -> ExtractedImages:
    """Replace the inline images in an unchecked diffusion request by placeholders.

    Raises ParametersInvalid if there are more than `most` images.
    """
    if not isinstance(body, dict):
        return ExtractedImages(body)
    by_text: dict[str, InlineImage] = {}
    chars = 0

    def with_placeholder(value: object, member: str) -> object:
        nonlocal chars
        if not isinstance(value, str) or inline_form(value) is None:
            return value
        by_text.setdefault(value, InlineImage(_PLACEHOLDER.format(len(by_text)), value, member))
        if len(by_text) > most:
            message = f"the request has too many inline images: {_many(most)}"
            raise ParametersInvalid((FieldError(_TOO_MANY, message, member),))
        chars += len(value)
        return by_text[value].placeholder

    changed: dict[str, object] = {}
    if isinstance(images := body.get(_LIST), list):
        changed[_LIST] = [with_placeholder(each, f"{_LIST}.{at}") for at, each in enumerate(images)]
    if _MASK in body:
        changed[_MASK] = with_placeholder(body[_MASK], _MASK)
    return ExtractedImages({**body, **changed}, tuple(by_text.values()), chars)


def with_member_names(request: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return a recorded diffusion request, with placeholders replaced by names of uploads."""
    changed: dict[str, Any] = {}
    if _LIST in request:
        changed[_LIST] = [names.get(each, each) for each in request[_LIST]]
    if mask := request.get(_MASK):
        changed[_MASK] = names.get(mask, mask)
    return {**request, **changed}


def member_refused(sent: InlineImage, why: str) -> ParametersInvalid:
    """Return the error for an unusable inline image of a valid diffusion request."""
    # The message does not repeat a URL, because a URL may be a secret.
    message = f"the image cannot be used. {why}"
    return ParametersInvalid((FieldError("value_error", message, sent.member),))


def _inline_inputs(node: object, catalogue: Catalogue) -> dict[str, str]:
    if not isinstance(node, dict) or not isinstance(node.get("inputs"), dict):
        return {}
    class_type = node.get("class_type")
    files = catalogue.image_inputs(class_type) if isinstance(class_type, str) else ()
    inputs = node["inputs"]
    return {
        name: inputs[name]
        for name in files
        if isinstance(inputs.get(name), str) and inline_form(inputs[name]) is not None
    }


def with_names(prompt: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the prompt, with placeholders replaced by names of uploads."""
    return {
        node_id: {
            **node,
            "inputs": {
                name: names.get(value, value) if isinstance(value, str) else value
                for name, value in node["inputs"].items()
            },
        }
        for node_id, node in prompt.items()
    }
