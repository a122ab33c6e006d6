"""GenerateRequest: the request that routes and protocols pass to `Acceptance`."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import Any, TypedDict

from events.delivery_steps import CallbackEvent
from events.store.records import ApiKey
from events.types import Flavour
from serve_app.checks import QUICK_BYTES
from serve_app.refusals import CallbackUrlMissing, QualityOfPng
from settings.constant import constant
from settings.keys import ImageFormat

IMAGE_QUALITY = constant("KEY_IMAGE_QUALITY", 90)
"""The quality of WebP and JPEG images if neither the request nor the key has one."""
_LONG_BYTES = 2**20
_ESCAPE = b"\\u"  # This starts a JSON escape, which may encode any of the other marks.
_TEXTS = (b"[", b"|", _ESCAPE)
_TEXTS_OF_WORKFLOW = (b"WebUI", b"Expression", _ESCAPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """A request to submit a job. `content` is the parsed `body`, not yet validated."""

    flavour: Flavour
    key: ApiKey
    endpoint: str
    body: bytes
    content: Any
    callback_url: str | None = None
    callback_events: tuple[str, ...] | None = None
    """The events before the end of the job for which callbacks are sent; None if there are none."""
    alone: bool = False
    preview: bool = False
    image_format: ImageFormat | None = None
    """None means the format of the key."""
    image_quality: int | None = None
    """1 to 100; None means the quality of the key."""
    max_bytes: int | None = None
    """The maximum size of the body without its inline images, in bytes. None means that the limit
    was already applied while the body was read.
    """
    idempotency_key: str | None = None
    job_id: str | None = None
    """The job id that the caller chose. An existing job with this id must have the same request."""
    client_id: str | None = None
    """See `Submitted.client_id`."""
    traceparent: str | None = None
    fingerprint: str = field(init=False)
    """A hash of the body and the parameters as the caller sent them, before seeds are drawn. A
    repeated request has the same fingerprint.
    """

    def __post_init__(self) -> None:
        callback = "" if self.callback_url is None else f"={self.callback_url}"
        asked = [name for name in ("alone", "preview") if getattr(self, name)]
        asked += self.callback_events or ()
        of_images = {"format": self.image_format, "quality": self.image_quality}
        asked += [f"image_{name}={value}" for name, value in of_images.items() if value is not None]
        text = "\0".join((self.flavour, self.endpoint, callback, *asked))
        content = text.encode("utf-8", "surrogatepass") + b"\0" + self.body
        object.__setattr__(self, "fingerprint", hashlib.sha256(content).hexdigest())

    @property
    def excess_bytes(self) -> int:
        """The number of bytes by which the body exceeds `max_bytes`.

        At least this many bytes must be inline images.
        """
        return 0 if self.max_bytes is None else max(0, len(self.body) - self.max_bytes)

    @property
    def is_repeatable(self) -> bool:
        """Whether a repeated request gets the same job, so that the caller can find the job."""
        return self.idempotency_key is not None or self.job_id is not None

    @property
    def is_quick_to_check(self) -> bool:
        """Whether checking the request takes only some milliseconds.

        A prompt in the WebUI's syntax that contains `[` or `|` counts as slow, because it may
        describe many texts. Expression nodes count as slow, because many of them may link to one
        long text.
        """
        marks = _TEXTS_OF_WORKFLOW if self.flavour is Flavour.WORKFLOW else _TEXTS
        return len(self.body) <= QUICK_BYTES and not any(mark in self.body for mark in marks)


async def generate_request(*, body: bytes, **fields: Any) -> GenerateRequest:
    """Build a request. A long body is hashed in a thread."""
    make = partial(GenerateRequest, body=body, **fields)
    return make() if len(body) <= _LONG_BYTES else await asyncio.to_thread(make)


def checked_callback_events(text: str | None) -> str | None:
    """Return the text unchanged. Raises ValueError if it is not a valid list of callback events."""
    if text is None:
        return None
    names = text.split(",")
    for name in names:
        if name not in set(CallbackEvent):
            near = get_close_matches(name, list(CallbackEvent), n=1)
            known = f"the events are {', '.join(CallbackEvent)}"
            hint = f"did you mean {near[0]}?" if near else known
            raise ValueError(f"{name[:40]!r} is not a callback event; {hint}")
    if CallbackEvent.COMPLETED not in names:
        raise ValueError("the events must include completed")
    return text


def events_before_end(text: str | None, callback_url: str | None) -> tuple[str, ...] | None:
    """Return the events of `callback_events` that precede the end, in a fixed order.

    `text` has been validated. Raises CallbackUrlMissing if there is no `callback_url`.
    """
    if text is None:
        return None
    if callback_url is None:
        raise CallbackUrlMissing
    before = (each for each in CallbackEvent if each is not CallbackEvent.COMPLETED)
    return tuple(each.value for each in before if each in text.split(",")) or None


class RecordedOutput(TypedDict):
    """Members of `Submitted`."""

    image_format: str | None
    image_quality: int | None


def recorded_image_format(request: GenerateRequest) -> RecordedOutput:
    """Return the image format and quality to record. Raises QualityOfPng.

    Both are None for PNG. The quality is also None if neither the request nor the key has one.
    """
    limits = request.key.limits
    image_format = request.image_format or limits.image_format or "png"
    if image_format == "png":
        if request.image_quality is not None:
            raise QualityOfPng
        return RecordedOutput(image_format=None, image_quality=None)
    quality = request.image_quality or limits.image_quality
    return RecordedOutput(image_format=image_format, image_quality=quality)
