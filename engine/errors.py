"""The exceptions that the engine raises. Each class has a `code` for callers.

EngineError                engine_failed       the engine could not run the request
├── GraphInvalid           invalid_input       the workflow is invalid, so no part of it runs
├── ParametersInvalid      invalid_input       the diffusion request has invalid fields
├── InputFileUnavailable   invalid_input       a file of a node is missing or cannot be read
├── TooLarge               invalid_input       a node would make more than the limits allow
├── CheckpointUnavailable  model_unavailable   a model file is missing, damaged or not supported
├── ModelsUnavailable      models_unreadable   the models folder cannot be read now
├── OutOfMemory            out_of_memory       the device has too little memory for the work
├── NodeFailed             node_failed         the body of a node raised
│   └── InputsInvalid      invalid_input       a node refuses its inputs
├── DeviceFailed           device_failed       the device failed; the request is not the cause
├── MachineFailed          machine_failed      the machine lacked files, threads or disk space
├── ExtensionInvalid       extension_invalid   an installed package of nodes cannot be used
└── Cancelled              cancelled           the run was cancelled

Every error can be pickled, because it is sent from the process of the engine to the job actor.
"""

from __future__ import annotations

import errno
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

ErrorCode: TypeAlias = Literal[
    "cancelled",
    "device_failed",
    "engine_failed",
    "extension_invalid",
    "invalid_input",
    "machine_failed",
    "model_unavailable",
    "models_unreadable",
    "node_failed",
    "out_of_memory",
]
SHOWN_FIELDS = 50
"""The largest number of fields in one error report."""
_MAX_TEXT_CHARS = 500
_INT_LIMIT = 2**64
COST_TOO_HIGH = "cost_too_high"
"""The `type` of a GraphInvalid for a graph that exceeds a limit."""
MODEL_NOT_SUPPORTED = "model_not_supported"
"""The `type` of the error of a node that names a model file which cannot be used."""
_FIELD_OF_MODEL = {
    "ckpt_name": "sd_model_checkpoint",
    "vae_name": "override_settings.sd_vae",
    "model_name": "hr_upscaler",
}
"""The field of a diffusion request for each input of a node that names a model."""
_FIELD_OF_LIMIT = {
    "max_cost": "steps",
    "max_live_bytes": "width",
    "max_conditioning_rows": "prompt",
    "max_tokens": "prompt",
    "max_merged_models": "prompt",
    "max_outputs": "batch_size",
}
"""The field of a diffusion request that the caller must change to meet each limit."""


class EngineError(Exception):
    """The engine could not run the request."""

    code: ClassVar[ErrorCode] = "engine_failed"
    beside_others: bool = False
    """Whether another run on the device may have caused the error."""


@dataclass(frozen=True, slots=True)
class FieldError:
    type: str
    message: str
    field: str


class GraphInvalid(EngineError):
    """The workflow is invalid. The fields and types are ComfyUI's, for its clients."""

    code = "invalid_input"

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

    @classmethod
    def of_comfyui(cls, error: Mapping[str, Any], node_errors: Mapping[str, Any]) -> GraphInvalid:
        """Return the error that a ComfyUI server has answered, which may have any form."""
        text = {name: str(error.get(name) or "") for name in ("type", "message", "details")}
        extra_info = error.get("extra_info")
        return cls(
            text["type"],
            text["message"] or "ComfyUI refused the graph",
            text["details"],
            extra_info=extra_info if isinstance(extra_info, dict) else None,
            node_errors=node_errors,
        )

    def body(self) -> dict[str, Any]:
        """Return the body of the error response. It is valid JSON for every request."""
        error = {
            "type": self.type,
            "message": self.message,
            "details": self.details,
            "extra_info": self.extra_info,
        }
        safe: dict[str, Any] = encodable({"error": error, "node_errors": self.node_errors})
        return safe

    def of_parameters(self) -> EngineError:
        """Return an error of a limit or of a model file as ParametersInvalid, and any other error
        unchanged.
        """
        if self.type == COST_TOO_HIGH:
            field = _FIELD_OF_LIMIT[self.extra_info["limit"]]
            return ParametersInvalid((FieldError(self.type, self.details, field),))
        errors = [each for node in self.node_errors.values() for each in node["errors"]]
        if not errors or any(each["type"] != MODEL_NOT_SUPPORTED for each in errors):
            return self
        fields = {
            _FIELD_OF_MODEL.get(each["extra_info"]["input_name"], "prompt"): each["details"]
            for each in errors
        }
        return ParametersInvalid(
            tuple(FieldError(MODEL_NOT_SUPPORTED, text, name) for name, text in fields.items())
        )


class ParametersInvalid(EngineError):
    """Fields of a request are invalid. The error shows the first `SHOWN_FIELDS` fields."""

    code = "invalid_input"

    def __init__(self, fields: tuple[FieldError, ...], count: int | None = None) -> None:
        """`count` is the number of invalid fields; None means that `fields` has all of them."""
        self.fields = fields[:SHOWN_FIELDS]
        self.count = len(fields) if count is None else count
        super().__init__(self.fields, self.count)

    def __str__(self) -> str:
        return "; ".join(f"{each.field}: {each.message}" for each in self.fields)


class CheckpointUnavailable(EngineError):
    """A model file is missing, damaged or of a kind that is not supported."""

    code = "model_unavailable"


class ModelsUnavailable(EngineError):
    """The models folder cannot be read now. The request itself may be valid."""

    code = "models_unreadable"


class InputFileUnavailable(EngineError):
    """A file that a node needs is missing or cannot be read."""

    code = "invalid_input"


class TooLarge(EngineError):
    """A node would make more images or pixels than the limits allow."""

    code = "invalid_input"


class OutOfMemory(EngineError):
    """The device's memory does not hold this job: lower the width, height or batch size."""

    code = "out_of_memory"

    def __init__(self, message: str | None = None, beside_others: bool = False) -> None:
        """`beside_others`: whether other runs were on the device and may have used the memory."""
        self.beside_others = beside_others
        super().__init__(message or type(self).__doc__, beside_others)

    def __str__(self) -> str:
        return str(self.args[0])


_ALLOCATORS = ("out of memory", "not enough memory", "can't allocate memory", "bad_alloc")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of Python, numpy, Pillow or torch reports that memory ran out.

    torch's errors are recognized by their texts, because its CPU allocators raise RuntimeError.
    """
    if isinstance(error, RuntimeError):
        return any(phrase in str(error) for phrase in _ALLOCATORS)
    return isinstance(error, OutOfMemory | MemoryError)


_UNEQUAL_SHAPES = re.compile(
    "shapes cannot be multiplied"
    r"|The size of tensor a \(\d+\) must match the size of tensor b"
    "|The expanded size of the tensor"
    "|Sizes of tensors must match"
    r"|expected input\[.*\] to have \d+ channels"
    "|is invalid for input of size"
)


def is_shape_error(error: BaseException) -> bool:
    """Whether an error of torch reports tensors whose shapes do not fit together."""
    return isinstance(error, RuntimeError) and bool(_UNEQUAL_SHAPES.search(str(error)))


def is_caused_by(error: BaseException | None, is_one: Callable[[BaseException], bool]) -> bool:
    """Whether `is_one` is true for the error itself or for an error in its chain of causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if is_one(error):
            return True
        seen.add(id(error))
        error = error.__cause__
    return False


class NodeFailed(EngineError):
    """The body of a node raised. In the same process, `__cause__` is the original exception."""

    code: ClassVar[ErrorCode] = "node_failed"

    def __init__(self, node_id: str, class_type: str, message: str) -> None:
        self.node_id = node_id
        self.class_type = class_type
        self.message = message
        super().__init__(node_id, class_type, message)

    def __str__(self) -> str:
        return _encodable_text(f"node {self.node_id} ({self.class_type}): {self.message}")


class InputsInvalid(NodeFailed):
    """A node refuses its inputs, for example a VAE of another family."""

    code = "invalid_input"


class DeviceFailed(EngineError):
    """The device failed. If the device `is_lost`, only another process can use it again."""

    code = "device_failed"

    def __init__(self, message: str, is_lost: bool) -> None:
        self.is_lost = is_lost
        super().__init__(message, is_lost)

    def __str__(self) -> str:
        return str(self.args[0])


class MachineFailed(EngineError):
    """The machine lacked files, threads or disk space. The request is not the cause."""

    code = "machine_failed"


_MACHINE_ERRNOS = frozenset(
    {
        errno.EAGAIN,
        errno.EDQUOT,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.EROFS,
        errno.ESTALE,
    }
)
_NO_THREAD = "can't start new thread"


def is_machine_error(error: BaseException | None) -> bool:
    """Whether the error itself, or an error in its chain of causes, is a failure of the machine."""
    return is_caused_by(error, _is_failure_of_machine)


def _is_failure_of_machine(error: BaseException) -> bool:
    match error:
        case MachineFailed():
            return True
        case OSError(errno=number):
            return number in _MACHINE_ERRNOS
        case RuntimeError():
            return _NO_THREAD in str(error)
        case _:
            return False


class ExtensionInvalid(EngineError):
    """An installed package of nodes cannot be used. The process then does not start."""

    code = "extension_invalid"


class Cancelled(EngineError):
    """The run was cancelled."""

    code = "cancelled"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or type(self).__doc__)


def encodable(value: Any) -> Any:
    """Return the value with text in place of values that strict JSON cannot represent.

    Such values are NaN, infinity, integers of more than 64 bits and objects of other types. Lone
    surrogates are escaped, and long texts are shortened.
    """
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
