"""Finds installed packages of nodes by their entry points, and checks their nodes.

An entry point of the group `darkroom.nodes` names a module that declares nodes as `engine.nodes`
does. docs/own-nodes.md describes the interface for such a module, and `API_VERSION` is the version
of this interface.

While a node of a package runs, its results are compared with its declaration. A mistake ends the
job with a message that names the node. Other jobs are not affected.
"""

from __future__ import annotations

import inspect
import logging
import math
import re
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

from engine.batcher import Work
from engine.errors import EngineError, ExtensionInvalid, GraphInvalid
from engine.graph.cost import (
    ConditioningShape,
    Estimate,
    ImageShape,
    LatentShape,
    MaskShape,
    Scalar,
    SigmasShape,
    bytes_of,
    default_shape,
)
from engine.graph.declarations import VALUE_TYPES, Body, Link, NodeType, gather_nodes, is_value
from engine.nodes import NODE_TYPES

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
"""The class of the shape in an estimate, for each type of output whose size matters."""


def with_checks(declared: NodeType, package: str) -> NodeType:
    """Return the node with a body and an estimate whose results are checked.

    Any error that the node's own check raises becomes a ValueError.
    """
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
    """Return the checked body of a pure node. The body runs also in processes without torch."""

    def body(context: Any, **inputs: Any) -> Any:
        try:
            result = declared.body(context, **inputs)
        except EngineError:
            raise
        except BaseException as error:
            raise EngineError(f"{type(error).__name__}: {error}") from error
        outputs = declared.outputs
        if not isinstance(result, tuple) or len(result) != len(outputs):
            raise EngineError(f"the body must return a tuple of {len(outputs)} outputs")
        if not all(map(is_value, outputs, result)):
            raise EngineError(f"the body must return values of the types {', '.join(outputs)}")
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
        raise ValueError(f"the body must return a tuple of {len(declared.outputs)} outputs")
    for place, (name, value) in enumerate(zip(declared.outputs, result, strict=True)):
        try:
            require_output(name, value)
        except ValueError as error:
            raise ValueError(f"the output {place} ({name}) {error}") from None
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
            raise ValueError(
                f"the check of the node failed: {type(error).__name__}: {error}"
            ) from error

    return checked_check


def _checked_estimate(declared: NodeType, package: str) -> Callable[[Mapping[str, Any]], Estimate]:
    def estimate(inputs: Mapping[str, Any]) -> Estimate:
        try:
            found = _with_values(declared, declared.estimated(inputs))
            fault = _estimate_fault(declared, found)
        except BaseException as error:  # noqa: BLE001 - with any error the graph cannot be accepted
            fault = f"{type(error).__name__}: {error}"
        else:
            if not fault:
                return found
        details = f"{declared.class_type} of {package}: {fault}"
        raise GraphInvalid(
            "custom_validation_failed", "The cost of a node cannot be computed", details
        )

    return estimate


def _with_values(declared: NodeType, estimate: Estimate) -> Estimate:
    """Return the estimate with default shapes for the values that are known only in the run."""
    if len(estimate.shapes) != len(declared.outputs):
        return estimate
    pairs = zip(declared.outputs, estimate.shapes, strict=True)
    shapes = [
        default_shape(name) if shape is None and name in VALUE_TYPES else shape
        for name, shape in pairs
    ]
    return replace(estimate, shapes=tuple(shapes))


def _estimate_fault(declared: NodeType, estimate: Estimate) -> str:
    if len(estimate.shapes) != len(declared.outputs):
        return f"the estimate has {len(estimate.shapes)} shapes for {len(declared.outputs)} outputs"
    for name, shape in zip(declared.outputs, estimate.shapes, strict=True):
        if name in SHAPES and not isinstance(shape, SHAPES[name]):
            return f"the estimate has {type(shape).__name__} for an output of type {name}"
    numbers = {
        "size of its outputs": sum(map(bytes_of, estimate.shapes)),
        "work": estimate.work,
        "scratch_bytes": estimate.scratch_bytes,
        "rows": estimate.rows,
        "results": estimate.results,
        "result_bytes": estimate.result_bytes,
    }
    bad = [name for name, number in numbers.items() if not 0 <= number < math.inf]
    return f"the estimate has no {bad[0]} of 0 or more" if bad else ""


GROUP = "darkroom.nodes"
API_VERSION = (1, 2)
"""The version of the interface for packages of nodes. A removal or a changed meaning raises the
first number, and an addition raises the second.
"""
_RESERVED = frozenset({"*", "COMBO", "GUIDER"})
"""Types that outputs of packages may not have."""
_DEVICE_LIBRARIES = ("torch", "diffusers", "transformers")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Extension:
    package: str
    version: str
    node_types: tuple[NodeType, ...]

    def __str__(self) -> str:
        return f"{self.package} {self.version}"


def installed_extensions(found: Iterable[EntryPoint] | None = None) -> tuple[Extension, ...]:
    """Return the installed packages of nodes, sorted by name. This imports their modules.

    `found` replaces the installed entry points. Raises ExtensionInvalid if a package cannot be
    used.
    """
    points = entry_points(group=GROUP) if found is None else found
    extensions = sorted(map(_load, points), key=lambda each: (each.package, each.version))
    owners = dict.fromkeys((each.class_type for each in NODE_TYPES), "Darkroom")
    for extension in extensions:
        for declared in extension.node_types:
            name = declared.class_type
            if name in owners:
                raise ExtensionInvalid(
                    f"the node {name} of {extension} has the name of a node of {owners[name]}: "
                    "rename it, or uninstall one of the packages"
                )
            owners[name] = str(extension)
    return tuple(extensions)


def installed_nodes(found: Iterable[EntryPoint] | None = None) -> tuple[NodeType, ...]:
    """Return the node types of `installed_extensions`, and write a log line for each package.

    Raises ExtensionInvalid if a package cannot be used.
    """
    extensions = installed_extensions(found)
    for each in extensions:
        extra = {
            "action": "extension",
            "package": each.package,
            "version": each.version,
            "nodes": [declared.class_type for declared in each.node_types],
        }
        _log.info("a package of nodes is installed", extra=extra)
    return tuple(each for one in extensions for each in one.node_types)


def _load(point: EntryPoint) -> Extension:
    package, version = (point.dist.name, point.dist.version) if point.dist else (point.module, "?")
    where = f"{package} {version}, entry point {point.name} = {point.value}"
    loaded_before = {name for name in _DEVICE_LIBRARIES if name in sys.modules}
    try:
        module = point.load()
    except BaseException as error:  # The new error names the package.
        raise ExtensionInvalid(f"{where}: {type(error).__name__}: {error}") from error
    if not isinstance(module, ModuleType):
        raise ExtensionInvalid(
            f"{where}: the entry point must name a module, such as my_nodes.blur"
        )
    _require_api(module, where)
    for name in _DEVICE_LIBRARIES:
        if name in sys.modules and name not in loaded_before:
            raise ExtensionInvalid(
                f"{where}: its import also imports {name}, which processes without a device must "
                "not load: import it in the body of a node"
            )
    return Extension(package, version, _node_types(module, package, where))


def _node_types(module: ModuleType, package: str, where: str) -> tuple[NodeType, ...]:
    try:
        declared = gather_nodes(module)
    except ValueError as error:
        raise ExtensionInvalid(f"{where}: {error}") from error
    # The module may import built-in nodes, which are not its own.
    ours = {id(each) for each in NODE_TYPES}
    own = [each for each in declared if id(each) not in ours]
    if not own:
        raise ExtensionInvalid(f"{where}: the module declares no node with @node")
    for each in own:
        if fault := _declaration_fault(each):
            raise ExtensionInvalid(f"{where}: {each.class_type}: {fault}")
    return tuple(replace(with_checks(each, package), package=package) for each in own)


def _require_api(module: ModuleType, where: str) -> None:
    """Raise ExtensionInvalid unless the module was written for a supported version."""
    ours = ".".join(map(str, API_VERSION))
    wanted = getattr(module, "NODES_API", None)
    if not isinstance(wanted, str) or not (match := re.fullmatch(r"(\d{1,6})\.(\d{1,6})", wanted)):
        raise ExtensionInvalid(
            f'{where}: the module must define NODES_API = "{ours}", the version for which it was '
            "made"
        )
    major, minor = int(match[1]), int(match[2])
    if major != API_VERSION[0] or minor > API_VERSION[1]:
        raise ExtensionInvalid(
            f"{where}: the module was made for version {wanted} of the interface for nodes, but "
            f"this is version {ours}: install another version of the package"
        )


def _declaration_fault(declared: NodeType) -> str:
    """Return an error message for a declaration, or an empty string if it is valid."""
    if not declared.class_type:
        return "the node has no name"
    try:
        signature = inspect.signature(declared.body)
        for names in (declared.inputs, declared.all_inputs):
            signature.bind("context", **dict.fromkeys(names))
    except (TypeError, ValueError) as error:
        return f"the body does not accept the inputs: {error}"
    if reserved := sorted(_RESERVED & set(declared.outputs)):
        return f"the node may not have outputs of the type {reserved[0]}"
    sized = sorted((SHAPES.keys() - VALUE_TYPES.keys()) & set(declared.outputs))
    if sized and declared.estimate is None:
        return f"the node needs an estimate, because it has outputs with sizes: {', '.join(sized)}"
    if declared.is_pure and not VALUE_TYPES.keys() >= set(declared.outputs):
        return f"a pure node may only have outputs of the types {', '.join(VALUE_TYPES)}"
    for name in filter(None, (declared.type_follows, declared.passed_input)):
        if not isinstance(declared.inputs.get(name), Link):
            return f"{name}, which `type_follows` or `passed_input` names, is no input of type Link"
    if declared.is_output == bool(declared.outputs):
        return "the node must either have outputs or be an output node, not both"
    return ""
