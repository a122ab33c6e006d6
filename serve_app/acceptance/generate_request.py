"""A generate request, as the HTTP edge hands it over."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from events.store.records import ApiKey
from events.types import Flavour
from serve_app.checks import QUICK_BYTES

_ESCAPE = b"\\u"  # of JSON; it may stand for any of the others
_TEXTS = (b"[", b"|", _ESCAPE)
_TEXTS_OF_WORKFLOW = (b"WebUI", _ESCAPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """`content` is `body`, parsed; nothing of it has been checked."""

    flavour: Flavour
    key: ApiKey
    endpoint: str
    callback_url: str | None
    alone: bool
    idempotency_key: str | None
    body: bytes
    content: Any
    traceparent: str | None
    fingerprint: str = field(init=False)
    """Tells a repeat from another request. It covers all that a caller sends, before any seed is
    drawn.
    """

    def __post_init__(self) -> None:
        callback = "" if self.callback_url is None else f"={self.callback_url}"
        alone = ["alone"] if self.alone else []
        text = "\0".join((self.flavour, self.endpoint, callback, *alone))
        said = text.encode("utf-8", "surrogatepass") + b"\0" + self.body
        object.__setattr__(self, "fingerprint", hashlib.sha256(said).hexdigest())

    @property
    def is_quick_to_check(self) -> bool:
        """Whether a check takes some milliseconds at most.

        A prompt in the WebUI's syntax may be many texts, where it has `[` or `|`.
        """
        marks = _TEXTS_OF_WORKFLOW if self.flavour is Flavour.WORKFLOW else _TEXTS
        return len(self.body) <= QUICK_BYTES and not any(mark in self.body for mark in marks)
