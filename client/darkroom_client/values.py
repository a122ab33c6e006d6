"""Classes for the answers, events and callbacks of the service. `raw` has the whole JSON."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from darkroom_client.errors import DarkroomError

ImageFormat = Literal["png", "webp", "jpeg"]


class JobFailed(DarkroomError):
    """The job failed or was cancelled."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.message or "The job failed.")
        self.result = result
        self.code = result.error_code
        self.is_retryable = result.is_retryable


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
    """Options of a job. None means the default of the service."""

    endpoint: str | None = None
    callback_url: str | None = None
    callback_events: Sequence[str] | None = None
    """Some of `started`, `image` and `completed`."""
    alone: bool | None = None
    preview: bool | None = None
    image_format: ImageFormat | None = None
    image_quality: int | None = None
    """1 to 100, for WebP and JPEG."""
    image_put_urls: Sequence[str] | None = None
    """Presigned URLs of your bucket, to which the service uploads the images of the ended job."""

    def body(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the request with the options that are members of its body."""
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
    """The state of the upload of an image to its URL in `image_put_urls`."""

    state: PutState
    message: str | None = None
    """The reason why the upload was given up."""


@dataclass(frozen=True, slots=True)
class Image:
    """One result of a job: an image, or a file of another kind."""

    index: int
    url: str
    seed: int | None = None
    width: int | None = None
    height: int | None = None
    data: bytes | None = field(default=None, repr=False)
    """The file, if it was requested with `inline` and is small enough."""
    put: Put | None = None
    """The state of the presigned upload; None if the image has no URL in `image_put_urls`."""
    kind: str | None = None
    """`image`, `video`, `audio`, `model`, `text` or `file`."""
    media_type: str | None = None
    size_bytes: int | None = None
    duration_s: float | None = None
    """The duration of a video or a sound, if it is known."""
    poster_url: str | None = None
    """The URL of the first frame of a video as a JPEG."""
    text: str | None = None
    """The content of a plain text of at most 4,096 bytes."""

    @property
    def suffix(self) -> str:
        """The suffix of the file name, such as `.png` or `.mp4`."""
        return "." + self.url.partition("?")[0].rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Result:
    """A job with its state, and with the images that were finished at the time of the answer."""

    request_id: str
    state: State
    images: tuple[Image, ...]
    message: str | None = None
    """The reason why the job failed."""
    error_code: str | None = None
    is_retryable: bool = False
    """Whether the same request is likely to succeed if it is submitted again."""
    progress: float | None = None
    queue_position: int | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def has_ended(self) -> bool:
        return self.state in _ENDS

    def require_completed(self) -> Result:
        """Return this result. Raises JobFailed if the job failed or was cancelled."""
        if self.state in {State.FAILED, State.CANCELLED}:
            raise JobFailed(self)
        return self

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Result:
        error = body.get("error") or {}
        state = body.get("state")
        return cls(
            request_id=str(body["request_id"]),
            state=State(state) if state in set(State) else _STATES[body["status"]],
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


_COPIED = (
    "seed",
    "width",
    "height",
    "kind",
    "media_type",
    "size_bytes",
    "duration_s",
    "poster_url",
    "text",
)
"""Members of an item that an `Image` has unchanged."""


def _image(index: int, item: Mapping[str, Any]) -> Image:
    data, put = item.get("data"), item.get("put")
    return Image(
        index,
        item["url"],
        data=None if data is None else b64decode(data),
        put=None if put is None else Put(_PUTS[put["status"]], put.get("message")),
        **{name: item.get(name) for name in _COPIED},
    )


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a job. `id` is its offset in the log, or None for progress and previews."""

    name: str
    data: Mapping[str, Any]
    id: str | None = None

    @property
    def is_end(self) -> bool:
        return self.name in {"completed", "failed", "cancelled", "erased"}


@dataclass(frozen=True, slots=True)
class Upload:
    """An input file. Workflows refer to it by `name`."""

    name: str
    digest: str
    width: int | None
    """In pixels; None for a video or audio file."""
    height: int | None
    size_bytes: int
    media_type: str | None = None
    """None if the service has version 0.2.0."""
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Upload:
        return cls(
            name=body["name"],
            digest=body["digest"],
            width=body.get("width"),
            height=body.get("height"),
            size_bytes=body["size_bytes"],
            media_type=body.get("media_type"),
            raw=body,
        )


@dataclass(frozen=True, slots=True)
class Callback:
    """A callback: the result of a job, and the event for which the callback is sent."""

    id: str
    """All attempts to send this callback have the same id. Ignore an id that you already know."""
    event: str
    """`completed` for every kind of end, or `started` or `image` before the end."""
    result: Result
    index: int | None = None
    """The index of the image, or None if `event` is not `image`."""
