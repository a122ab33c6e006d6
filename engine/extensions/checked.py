"""Nodes of other packages, with what they return held against what they declare.

What our own nodes return is known from their tests. A package's mistake must end the job that met
it with words that name the node, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import Any

from engine.batcher import Work
from engine.errors import EngineError, GraphInvalid
from engine.graph.cost import (
    ConditioningShape,
    Estimate,
    ImageShape,
    LatentShape,
    MaskShape,
    Scalar,
    SigmasShape,
    bytes_of,
)
from engine.graph.declarations import VALUE_TYPES, Body, NodeType, is_value
from engine.graph.default_shapes import default_shape

SHAPES: dict[str, type] = {
    "IMAGE": ImageShape,
    "MASK": MaskShape,
    "LATENT": LatentShape,
    "CONDITIONING": ConditioningShape,
    "SIGMAS": SigmasShape,
    "SAMPLER": str,
    "UPSCALE_MODEL": int,
    **dict.fromkeys(VALUE_TYPES, Scalar),
}
"""What an estimate says of each type of output whose size matters."""


def checked(declared: NodeType, package: str) -> NodeType:
    """The node of a package, with its check, its estimate and its body held to its declaration."""
    return replace(
        declared,
        body=_checked_values(declared) if declared.is_pure else _checked_body(declared),
        check=declared.check and _checked_check(declared.check),
        estimate=declared.estimate and _checked_estimate(declared, package),
    )


def _checked_body(declared: NodeType) -> Body:
    def body(context: Any, **inputs: Any) -> Any:
        result = declared.body(context, **inputs)
        if isinstance(result, Generator):
            return _checked_work(declared, result)
        return _checked_result(declared, result)

    return body


def _checked_values(declared: NodeType) -> Body:
    """The body of a pure node, which runs without torch as well."""

    def body(context: Any, **inputs: Any) -> Any:
        try:
            result = declared.body(context, **inputs)
        except EngineError:
            raise
        except BaseException as error:
            raise EngineError(f"{type(error).__name__}: {error}") from error
        outputs = declared.outputs
        if not isinstance(result, tuple) or len(result) != len(outputs):
            raise EngineError(f"its body must return a tuple of {len(outputs)} outputs")
        if not all(map(is_value, outputs, result)):
            raise EngineError(f"its body must return values of the types {', '.join(outputs)}")
        return result

    return body


def _checked_work(declared: NodeType, work: Work[Any]) -> Work[Any]:
    return _checked_result(declared, (yield from work))


def _checked_result(declared: NodeType, result: Any) -> Any:
    from engine.diffusion.output_check import require_output, require_results

    if declared.is_output:
        require_results(result)
        return result
    if not isinstance(result, tuple) or len(result) != len(declared.outputs):
        raise ValueError(f"its body must return a tuple of {len(declared.outputs)} outputs")
    for place, (name, value) in enumerate(zip(declared.outputs, result, strict=True)):
        try:
            require_output(name, value)
        except ValueError as error:
            raise ValueError(f"its output {place} ({name}) {error}") from None
    return result


def _checked_check(
    check: Callable[[Mapping[str, Any]], object],
) -> Callable[[Mapping[str, Any]], object]:
    def checked_check(literals: Mapping[str, Any]) -> object:
        try:
            return check(literals)
        except ValueError:
            raise
        except BaseException as error:
            raise ValueError(f"its check failed: {type(error).__name__}: {error}") from error

    return checked_check


def _checked_estimate(declared: NodeType, package: str) -> Callable[[Mapping[str, Any]], Estimate]:
    def estimate(inputs: Mapping[str, Any]) -> Estimate:
        try:
            found = _with_values(declared, declared.estimated(inputs))
            fault = _fault(declared, found)
        except BaseException as error:  # noqa: BLE001 - of whatever kind, the graph cannot be accepted
            fault = f"{type(error).__name__}: {error}"
        else:
            if not fault:
                return found
        details = f"{declared.class_type} of {package}: {fault}"
        raise GraphInvalid("custom_validation_failed", "A node's cost cannot be told", details)

    return estimate


def _with_values(declared: NodeType, estimate: Estimate) -> Estimate:
    """With what stands for numbers, texts and truth values that only the run tells."""
    if len(estimate.shapes) != len(declared.outputs):
        return estimate
    told = zip(declared.outputs, estimate.shapes, strict=True)
    shapes = [
        default_shape(name) if shape is None and name in VALUE_TYPES else shape
        for name, shape in told
    ]
    return replace(estimate, shapes=tuple(shapes))


def _fault(declared: NodeType, estimate: Estimate) -> str:
    if len(estimate.shapes) != len(declared.outputs):
        return f"its estimate has {len(estimate.shapes)} shapes for {len(declared.outputs)} outputs"
    for name, shape in zip(declared.outputs, estimate.shapes, strict=True):
        if name in SHAPES and not isinstance(shape, SHAPES[name]):
            return f"its estimate says {type(shape).__name__} of an output of type {name}"
    numbers = {
        "size of its outputs": sum(map(bytes_of, estimate.shapes)),
        "work": estimate.work,
        "scratch_bytes": estimate.scratch_bytes,
        "rows": estimate.rows,
        "results": estimate.results,
        "result_bytes": estimate.result_bytes,
    }
    bad = [name for name, number in numbers.items() if not 0 <= number < math.inf]
    return f"its estimate has no {bad[0]} of 0 or more" if bad else ""
