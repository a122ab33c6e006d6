"""The progress of a running job, which is published and never stored."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import asdict, dataclass, field
from typing import Any


class MalformedProgress(ValueError):
    """The bytes are not the progress of a job."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The progress of a job: sampler steps over all samplers, and the running node."""

    done: int
    total: int
    """The number of steps of the job, at least 1."""
    node: str | None = None
    """The id of the running node; None if it is unknown."""
    class_type: str | None = None
    """The class of the running node."""
    rows: int | None = None
    """The number of rows in the last model call, including rows of other jobs. None before the
    first call."""
    images: int = 0
    """The number of finished results."""
    preview: bytes | None = field(default=None, repr=False)
    """A preview of the image as a JPEG; None if there is no new preview."""

    @property
    def fraction(self) -> float:
        """The fraction of the steps that are done, 0..1."""
        return min(max(self.done / self.total, 0.0), 1.0)

    def encode(self) -> bytes:
        """Encode as JSON, with the preview in base64; see `decode_progress`."""
        members = {name: value for name, value in asdict(self).items() if value is not None}
        if self.preview is not None:
            members["preview"] = b64encode(self.preview).decode()
        return json.dumps(members).encode()


def decode_progress(data: bytes) -> JobProgress:
    """Decode the result of `JobProgress.encode`. Raises MalformedProgress."""
    try:
        members: dict[str, Any] = json.loads(data)
        rows, preview = members.get("rows"), members.get("preview")
        return JobProgress(
            done=int(members["done"]),
            total=max(int(members["total"]), 1),
            node=_text(members.get("node")),
            class_type=_text(members.get("class_type")),
            rows=None if rows is None else int(rows),
            images=int(members.get("images", 0)),
            preview=None if preview is None else b64decode(preview, validate=True),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise MalformedProgress(str(error)) from error


def _text(members: Any) -> str | None:
    return None if members is None else str(members)
