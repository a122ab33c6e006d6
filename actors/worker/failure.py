"""Which code the end of a job has that an error of the engine ends."""

from __future__ import annotations

from engine.errors import (
    CheckpointUnavailable,
    DeviceFailed,
    EngineError,
    GraphInvalid,
    InputFileUnavailable,
    MachineFailed,
    NodeFailed,
    OutOfMemory,
    ParametersInvalid,
    TooLarge,
)
from events.result import FailureCode

_CODES: dict[type[EngineError], FailureCode] = {
    GraphInvalid: FailureCode.INVALID_INPUT,
    ParametersInvalid: FailureCode.INVALID_INPUT,
    InputFileUnavailable: FailureCode.INVALID_INPUT,
    TooLarge: FailureCode.INVALID_INPUT,
    CheckpointUnavailable: FailureCode.MODEL_UNAVAILABLE,
    OutOfMemory: FailureCode.OUT_OF_MEMORY,
    NodeFailed: FailureCode.NODE_FAILED,
    DeviceFailed: FailureCode.ENGINE_FAILED,
    MachineFailed: FailureCode.ENGINE_FAILED,
}


_NOT_LISTED = "value_not_in_list"


def code_of(error: Exception) -> FailureCode:
    """What was accepted named what there was: what is not listed any more is gone."""
    if _NOT_LISTED in _types(error):
        return FailureCode.MODEL_UNAVAILABLE
    return next(
        (code for type, code in _CODES.items() if isinstance(error, type)),
        FailureCode.ENGINE_FAILED,
    )


def _types(error: Exception) -> set[str]:
    """The types of the errors of its fields or inputs."""
    match error:
        case ParametersInvalid(fields=fields):
            return {each.type for each in fields}
        case GraphInvalid(node_errors=nodes):
            return {each["type"] for node in nodes.values() for each in node["errors"]}
        case _:
            return set()
