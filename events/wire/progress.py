"""How far a running job is. It is told while it happens and never stored. Pure."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import asdict, dataclass, field
from typing import Any


class MalformedProgress(ValueError):
    """The bytes say nothing of a job."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Sampler steps of a job, all of its samplers together, and what goes on at the moment."""

    done: int
    total: int
    """At least 1."""
    node: str | None = None
    """Id of the node under way; None where a version told this that did not say it."""
    class_type: str | None = None
    """Of that node."""
    rows: int | None = None
    """In the last call of the model, those of other jobs included; None before the first."""
    images: int = 0
    """How many results are there."""
    preview: bytes | None = field(default=None, repr=False)
    """What its picture looks like so far, as a JPEG; None where there is nothing new to see."""

    @property
    def fraction(self) -> float:
        """Part of the steps that is done, 0..1."""
        return min(max(self.done / self.total, 0.0), 1.0)

    def encode(self) -> bytes:
        """As JSON, with the preview in base64; `decode_progress` reads it."""
        said = {name: value for name, value in asdict(self).items() if value is not None}
        if self.preview is not None:
            said["preview"] = b64encode(self.preview).decode()
        return json.dumps(said).encode()


def decode_progress(data: bytes) -> JobProgress:
    """Raises MalformedProgress."""
    try:
        said: dict[str, Any] = json.loads(data)
        rows, preview = said.get("rows"), said.get("preview")
        return JobProgress(
            done=int(said["done"]),
            total=max(int(said["total"]), 1),
            node=_text(said.get("node")),
            class_type=_text(said.get("class_type")),
            rows=None if rows is None else int(rows),
            images=int(said.get("images", 0)),
            preview=None if preview is None else b64decode(preview, validate=True),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise MalformedProgress(str(error)) from error


def _text(said: Any) -> str | None:
    return None if said is None else str(said)
