"""A generate request, as the HTTP edge hands it over."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from events.store.records import ApiKey
from events.types import Flavour
from serve_app.checks import QUICK_BYTES
from settings.keys import ImageFormat

_LONG_BYTES = 2**20
_ESCAPE = b"\\u"  # of JSON; it may stand for any of the others
_TEXTS = (b"[", b"|", _ESCAPE)
_TEXTS_OF_WORKFLOW = (b"WebUI", b"Expression", _ESCAPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """`content` is `body`, parsed; nothing of it has been checked."""

    flavour: Flavour
    key: ApiKey
    endpoint: str
    body: bytes
    content: Any
    callback_url: str | None = None
    callback_events: tuple[str, ...] | None = None
    """What the caller is told of before the end; None is nothing."""
    alone: bool = False
    preview: bool = False
    image_format: ImageFormat | None = None
    """None: that of the key."""
    image_quality: int | None = None
    """1 to 100; None: that of the key."""
    max_bytes: int | None = None
    """The most bytes that the body may have beside the images that it brings along; None: it was
    held to that as it was read."""
    idempotency_key: str | None = None
    job_id: str | None = None
    """That the caller chose; a job that has it already must be of the same request."""
    client_id: str | None = None
    """As `Submitted` has it."""
    traceparent: str | None = None
    fingerprint: str = field(init=False)
    """Tells a repeat from another request. It covers all that a caller sends, before any seed is
    drawn.
    """

    def __post_init__(self) -> None:
        callback = "" if self.callback_url is None else f"={self.callback_url}"
        asked = [name for name in ("alone", "preview") if getattr(self, name)]
        asked += self.callback_events or ()
        of_images = {"format": self.image_format, "quality": self.image_quality}
        asked += [f"image_{name}={value}" for name, value in of_images.items() if value is not None]
        text = "\0".join((self.flavour, self.endpoint, callback, *asked))
        said = text.encode("utf-8", "surrogatepass") + b"\0" + self.body
        object.__setattr__(self, "fingerprint", hashlib.sha256(said).hexdigest())

    @property
    def excess_bytes(self) -> int:
        """How many bytes of the body must be images."""
        return 0 if self.max_bytes is None else max(0, len(self.body) - self.max_bytes)

    @property
    def is_repeatable(self) -> bool:
        """Whether the caller can send it again without another job, and knows its job meanwhile."""
        return self.idempotency_key is not None or self.job_id is not None

    @property
    def is_quick_to_check(self) -> bool:
        """Whether a check takes some milliseconds at most.

        A prompt in the WebUI's syntax may be many texts, where it has `[` or `|`. Many expressions
        may be one text, which they get by links.
        """
        marks = _TEXTS_OF_WORKFLOW if self.flavour is Flavour.WORKFLOW else _TEXTS
        return len(self.body) <= QUICK_BYTES and not any(mark in self.body for mark in marks)


async def generate_request(*, body: bytes, **fields: Any) -> GenerateRequest:
    """Made in a thread where the body is long, since all of it is hashed."""
    make = partial(GenerateRequest, body=body, **fields)
    return make() if len(body) <= _LONG_BYTES else await asyncio.to_thread(make)
