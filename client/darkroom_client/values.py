"""What the service answers and tells, as values. Members that are not known are in `raw`."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from darkroom_client.errors import JobFailed

ImageFormat = Literal["png", "webp", "jpeg"]


class State(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


_STATES = {0: State.RUNNING, 1: State.COMPLETED, 2: State.FAILED}
_ENDS = {State.COMPLETED, State.FAILED, State.CANCELLED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a job may be asked for beside its request; None is what the service does by itself."""

    endpoint: str | None = None
    callback_url: str | None = None
    callback_events: Sequence[str] | None = None
    """Of `started`, `image` and `completed`."""
    alone: bool | None = None
    preview: bool | None = None
    image_format: ImageFormat | None = None
    image_quality: int | None = None
    """1 to 100, of WebP and JPEG."""
    image_put_urls: Sequence[str] | None = None
    """Where its images are put once it has ended: presigned addresses of a bucket of yours."""

    def body(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The request with what is asked for in its body."""
        urls = self.image_put_urls
        return {**request, **({} if urls is None else {"image_put_urls": list(urls)})}

    def query(self) -> dict[str, str]:
        events = None if self.callback_events is None else ",".join(self.callback_events)
        given = {
            "endpoint": self.endpoint,
            "callback_url": self.callback_url,
            "callback_events": events,
            "alone": self.alone,
            "preview": self.preview,
            "image_format": self.image_format,
            "image_quality": self.image_quality,
        }
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in given.items()
            if value is not None
        }


class PutState(StrEnum):
    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"


_PUTS = {0: PutState.PENDING, 1: PutState.DONE, 2: PutState.FAILED}


@dataclass(frozen=True, slots=True)
class Put:
    """Whether an image is where `image_put_urls` wanted it."""

    state: PutState
    message: str | None = None
    """Why it was given up."""


@dataclass(frozen=True, slots=True)
class Image:
    """One result of a job: an image, or a latent."""

    index: int
    url: str
    seed: int | None = None
    width: int | None = None
    height: int | None = None
    data: bytes | None = field(default=None, repr=False)
    """Where the result was asked for with its files, and it is small enough."""
    put: Put | None = None
    """Where it has an address of `image_put_urls`."""

    @property
    def suffix(self) -> str:
        """`.png`, `.webp`, `.jpg` or `.latent`."""
        return "." + self.url.partition("?")[0].rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Result:
    """The state of a job."""

    request_id: str
    state: State
    images: tuple[Image, ...]
    """Those that are there."""
    message: str | None = None
    """Why it failed."""
    error_code: str | None = None
    is_retryable: bool = False
    """Whether the same request may well succeed when it is submitted again."""
    progress: float | None = None
    queue_position: int | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def has_ended(self) -> bool:
        return self.state in _ENDS

    def require_completed(self) -> Result:
        """Raises JobFailed where it failed or was cancelled."""
        if self.state in {State.FAILED, State.CANCELLED}:
            raise JobFailed(self)
        return self

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Result:
        error = body.get("error") or {}
        said = body.get("state")
        return cls(
            request_id=str(body["request_id"]),
            state=State(said) if said in set(State) else _STATES[body["status"]],
            images=tuple(
                _image(index, item)
                for index, item in enumerate(body.get("results") or ())
                if item.get("url")
            ),
            message=body.get("message"),
            error_code=error.get("code"),
            is_retryable=bool(error.get("retryable")),
            progress=body.get("progress"),
            queue_position=body.get("queue_position"),
            raw=body,
        )


def _image(index: int, item: Mapping[str, Any]) -> Image:
    data, put = item.get("data"), item.get("put")
    return Image(
        index,
        item["url"],
        seed=item.get("seed"),
        width=item.get("width"),
        height=item.get("height"),
        data=None if data is None else b64decode(data),
        put=None if put is None else Put(_PUTS[put["status"]], put.get("message")),
    )


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job. `data` is for its caller; `id` is its place in the log."""

    name: str
    data: Mapping[str, Any]
    id: str | None = None

    @property
    def is_end(self) -> bool:
        return self.name in {"completed", "failed", "cancelled", "erased"}


@dataclass(frozen=True, slots=True)
class Upload:
    """An input image, which a workflow names."""

    name: str
    digest: str
    width: int
    height: int
    size_bytes: int

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Upload:
        names = ("name", "digest", "width", "height", "size_bytes")
        return cls(**{name: body[name] for name in names})


@dataclass(frozen=True, slots=True)
class Callback:
    """What a callback tells: the result, and what of it happened."""

    id: str
    """The same on every try: drop what you have had."""
    event: str
    """`completed` for the end, whichever; `started` or `image` before it."""
    result: Result
    index: int | None = None
    """Of the image that `image` is about."""
