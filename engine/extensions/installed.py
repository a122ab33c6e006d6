"""Finds installed packages of nodes by their entry points, and says what is wrong with one.

An entry point of the group `darkroom.nodes` names a module that declares nodes as ours do. What
such a module may rely on is in docs/own-nodes.md, and `API_VERSION` is the version of that.
"""

from __future__ import annotations

import inspect
import logging
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

from engine.extensions.checked import SHAPES, checked
from engine.graph.declarations import VALUE_TYPES, NodeType, gather_nodes
from engine.nodes import NODE_TYPES

GROUP = "darkroom.nodes"
API_VERSION = (1, 1)
"""Of what a package of nodes may rely on. The first number grows with what is taken away or means
something else, the second with what is added."""
_RESERVED = frozenset({"*", "COMBO", "GUIDER"})
"""Types of outputs that only our own nodes have."""
_DEVICE_LIBRARIES = ("torch", "diffusers", "transformers")

_log = logging.getLogger(__name__)


class ExtensionInvalid(Exception):
    """An installed package of nodes cannot be used. Nothing starts beside it."""


@dataclass(frozen=True, slots=True)
class Extension:
    """The nodes of one installed package."""

    package: str
    version: str
    node_types: tuple[NodeType, ...]

    def __str__(self) -> str:
        return f"{self.package} {self.version}"


def installed_extensions(found: Iterable[EntryPoint] | None = None) -> tuple[Extension, ...]:
    """The packages that have nodes, by name. Their modules are imported.

    Without `found`, those that are installed. Raises ExtensionInvalid.
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


def nodes_of(extensions: Sequence[Extension]) -> tuple[NodeType, ...]:
    """The node types of all of them."""
    return tuple(each for one in extensions for each in one.node_types)


def log_extensions(extensions: Sequence[Extension]) -> None:
    """Write a line about each package to the log."""
    for each in extensions:
        extra = {
            "action": "extension",
            "package": each.package,
            "version": each.version,
            "nodes": [declared.class_type for declared in each.node_types],
        }
        _log.info("a package of nodes is installed", extra=extra)


def _load(point: EntryPoint) -> Extension:
    package, version = (point.dist.name, point.dist.version) if point.dist else (point.module, "?")
    where = f"{package} {version}, entry point {point.name} = {point.value}"
    loaded_before = {name for name in _DEVICE_LIBRARIES if name in sys.modules}
    try:
        module = point.load()
    except BaseException as error:  # whatever a foreign module raises, this names the package
        raise ExtensionInvalid(f"{where}: {type(error).__name__}: {error}") from error
    if not isinstance(module, ModuleType):
        raise ExtensionInvalid(f"{where}: it must name a module, such as my_nodes.blur")
    _require_api(module, where)
    for name in _DEVICE_LIBRARIES:
        if name in sys.modules and name not in loaded_before:
            raise ExtensionInvalid(
                f"{where}: importing it imports {name}, which processes without a device do "
                "without: import it in the body of a node"
            )
    return Extension(package, version, _node_types(module, package, where))


def _node_types(module: ModuleType, package: str, where: str) -> tuple[NodeType, ...]:
    try:
        declared = gather_nodes(module)
    except ValueError as error:
        raise ExtensionInvalid(f"{where}: {error}") from error
    ours = {id(each) for each in NODE_TYPES}  # one that it imports, to build on it
    own = [each for each in declared if id(each) not in ours]
    if not own:
        raise ExtensionInvalid(f"{where}: it declares no node with @node")
    for each in own:
        if fault := _fault(each):
            raise ExtensionInvalid(f"{where}: {each.class_type}: {fault}")
    return tuple(replace(checked(each, package), package=package) for each in own)


def _require_api(module: ModuleType, where: str) -> None:
    """Raise ExtensionInvalid unless the module was written for a version that we keep."""
    ours = ".".join(map(str, API_VERSION))
    wanted = getattr(module, "NODES_API", None)
    if not isinstance(wanted, str) or not (match := re.fullmatch(r"(\d{1,6})\.(\d{1,6})", wanted)):
        raise ExtensionInvalid(f'{where}: it must say NODES_API = "{ours}", for which it was made')
    major, minor = int(match[1]), int(match[2])
    if major != API_VERSION[0] or minor > API_VERSION[1]:
        raise ExtensionInvalid(
            f"{where}: it was made for version {wanted} of what nodes may rely on, and this is "
            f"{ours}: install another version of it"
        )


def _fault(declared: NodeType) -> str:
    """What is wrong with a declaration; empty if nothing is."""
    if not declared.class_type:
        return "it has no name"
    try:
        signature = inspect.signature(declared.body)
        for names in (declared.inputs, declared.all_inputs):
            signature.bind("context", **dict.fromkeys(names))
    except (TypeError, ValueError) as error:
        return f"its body does not take its inputs: {error}"
    if reserved := sorted(_RESERVED & set(declared.outputs)):
        return f"it may not have outputs of the type {reserved[0]}"
    sized = sorted((SHAPES.keys() - VALUE_TYPES.keys()) & set(declared.outputs))
    if sized and declared.estimate is None:
        return f"it needs an estimate, for its outputs have sizes: {', '.join(sized)}"
    if declared.is_pure and not VALUE_TYPES.keys() >= set(declared.outputs):
        return f"a pure node may only have outputs of the types {', '.join(VALUE_TYPES)}"
    if declared.is_output == bool(declared.outputs):
        return "it must have outputs, or be an output node, and not both"
    return ""
