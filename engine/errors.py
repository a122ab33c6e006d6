"""What can go wrong in the engine.

EngineError
├── GraphInvalid           the workflow is invalid, so no part of it runs
├── ParametersInvalid      the diffusion request is invalid; it has one entry per field
├── CheckpointUnavailable  a model file is missing, damaged or of a kind that is not supported
├── ModelsUnavailable      the models folder cannot be read now
├── InputFileUnavailable   a file that a node needs is missing or cannot be read
├── TooLarge               a node would make more images or pixels than the limits allow
├── OutOfMemory            the device has too little memory for the work
├── NodeFailed             a node's body raised
├── DeviceFailed           the device failed, whatever it was asked for
├── MachineFailed          the machine lacked files, threads or room on a disk
└── Cancelled              the run was cancelled

Every error survives pickling, because it travels from the engine's process to the job's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

SHOWN_FIELDS = 50
"""The most fields whose errors are told at once."""
_MAX_TEXT_CHARS = 500
_INT_LIMIT = 2**64


class EngineError(Exception):
    """The engine could not run what it was given."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """The error of one field of a request."""

    type: str
    message: str
    field: str


class GraphInvalid(EngineError):
    """The workflow is invalid. The error has ComfyUI's shape.

    `type` and the types in `node_errors` are ComfyUI's names, so that its clients can read them.
    """

    def __init__(
        self,
        type: str,
        message: str,
        details: str = "",
        *,
        extra_info: Mapping[str, Any] | None = None,
        node_errors: Mapping[str, Any] | None = None,
    ) -> None:
        self.type = type
        self.message = message
        self.details = details
        self.extra_info: dict[str, Any] = dict(extra_info or {})
        self.node_errors: dict[str, Any] = dict(node_errors or {})
        super().__init__(type, message, details)

    def __str__(self) -> str:
        return _encodable_text(f"{self.message}: {self.details}" if self.details else self.message)

    def body(self) -> dict[str, Any]:
        """The body of the error response. It is always valid JSON, whatever the caller sent."""
        error = {
            "type": self.type,
            "message": self.message,
            "details": self.details,
            "extra_info": self.extra_info,
        }
        safe: dict[str, Any] = encodable({"error": error, "node_errors": self.node_errors})
        return safe


class ParametersInvalid(EngineError):
    """Fields of a request are invalid. Of many bad ones it has the first `SHOWN_FIELDS`."""

    def __init__(self, fields: tuple[FieldError, ...], count: int | None = None) -> None:
        """`count`: how many fields are bad; None if `fields` are all."""
        self.fields = fields[:SHOWN_FIELDS]
        self.count = len(fields) if count is None else count
        super().__init__(self.fields, self.count)

    def __str__(self) -> str:
        return "; ".join(f"{each.field}: {each.message}" for each in self.fields)


class CheckpointUnavailable(EngineError):
    """A model file is missing, damaged or of a kind that is not supported."""


class ModelsUnavailable(EngineError):
    """The models folder cannot be read now. That says nothing of what was asked for."""


class InputFileUnavailable(EngineError):
    """A file that a node needs is missing or cannot be read."""


class TooLarge(EngineError):
    """A node would make more images or pixels than the limits allow."""


class OutOfMemory(EngineError):
    """The device's memory does not hold this job: lower the width, height or batch size."""

    def __init__(self, message: str | None = None, beside_others: bool = False) -> None:
        """`beside_others`: other runs were there, and may have held the memory."""
        self.beside_others = beside_others
        super().__init__(message or type(self).__doc__, beside_others)

    def __str__(self) -> str:
        return str(self.args[0])


_ALLOCATORS = ("out of memory", "not enough memory", "can't allocate memory", "bad_alloc")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of Python, numpy, Pillow or torch says that memory ran out.

    torch's errors are told by their texts: those of the CPU's allocators are plain RuntimeErrors.
    """
    if isinstance(error, RuntimeError):
        return any(phrase in str(error) for phrase in _ALLOCATORS)
    return isinstance(error, OutOfMemory | MemoryError)


def is_caused_by(error: BaseException | None, is_one: Callable[[BaseException], bool]) -> bool:
    """Whether `is_one` is true of the error itself, or of one that it was raised from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if is_one(error):
            return True
        seen.add(id(error))
        error = error.__cause__
    return False


class NodeFailed(EngineError):
    """A node's body raised. In the same process, `__cause__` is the original exception."""

    def __init__(self, node_id: str, class_type: str, message: str) -> None:
        self.node_id = node_id
        self.class_type = class_type
        self.message = message
        super().__init__(node_id, class_type, message)

    def __str__(self) -> str:
        return _encodable_text(f"node {self.node_id} ({self.class_type}): {self.message}")


class DeviceFailed(EngineError):
    """The device failed. If it `is_lost`, nothing works on it until the process is another one."""

    def __init__(self, message: str, is_lost: bool) -> None:
        self.is_lost = is_lost
        super().__init__(message, is_lost)

    def __str__(self) -> str:
        return str(self.args[0])


class MachineFailed(EngineError):
    """The machine lacked files, threads or room on a disk, whatever it was asked for."""


class Cancelled(EngineError):
    """The run was cancelled."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or type(self).__doc__)


def encodable(value: Any) -> Any:
    """The value without what strict JSON cannot hold: NaN, lone surrogates, huge integers."""
    match value:
        case str():
            return _encodable_text(value)
        case bool() | None:
            return value
        case int():
            return value if abs(value) < _INT_LIMIT else "an integer of more than 64 bits"
        case float():
            return value if math.isfinite(value) else str(value)
        case Mapping():
            return {_encodable_text(str(key)): encodable(item) for key, item in value.items()}
        case list() | tuple():
            return [encodable(item) for item in value]
        case _:
            return f"a value of type {type(value).__name__}"


def _encodable_text(text: str) -> str:
    short = text if len(text) <= _MAX_TEXT_CHARS else text[:_MAX_TEXT_CHARS] + "…"
    return short.encode("utf-8", "backslashreplace").decode("utf-8")
