"""ObjectInfo: the node types of a ComfyUI server, as its route `/object_info` declares them.

The last answer is kept while no server runs, so that a graph can be checked before it runs. The
check finds only errors that are certain. A node may check its inputs itself, which the answer does
not show, so the server checks the values of nodes from packs.

The answer is described at https://docs.comfy.org/custom-nodes/backend/datatypes and
https://docs.comfy.org/custom-nodes/backend/server_overview.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from comfyui.errors import PromptRefused, RequestFailed
from comfyui.graphs import INPUT_SUFFIX

_GROUPS = ("required", "optional")
_DYNAMIC = "COMFY_"
"""The prefix of types whose inputs depend on other inputs."""
_CORE = ("nodes", "comfy_extras.")
"""The modules of the nodes that belong to ComfyUI itself."""
_CHECKED_BY_NODE = {"LoadLatent"}
"""Core nodes that check their files themselves, and whose inputs have none of `_UPLOADS`."""
_UPLOADS = ("image_upload", "video_upload", "audio_upload", "file_upload")
"""The options of inputs that choose a file of the input folder. Their nodes check the names."""
_SHOWN_VALUES = 20
_SHOWN_CHARS = 100
_SHOWN_NODES = 50
_MOST_SHOWN_CHARS = 1000


@dataclass(frozen=True, slots=True)
class DeclaredInput:
    name: str
    type: str
    """The name of the type; `COMBO` for a list of choices."""
    is_required: bool
    choices: Sequence[Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    is_file: bool = False
    """Whether the input chooses a file of the input folder."""
    known: frozenset[Any] = field(init=False, repr=False, compare=False)
    """The choices that a literal can be."""

    def __post_init__(self) -> None:
        literals = (each for each in self.choices or () if isinstance(each, str | int | float))
        object.__setattr__(self, "known", frozenset(literals))


class ObjectInfo:
    def __init__(self, content: bytes) -> None:
        """`content` is the answer of a server. Raises RequestFailed if it has another form."""
        try:
            nodes = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise RequestFailed("/object_info is not JSON") from error
        declared = nodes.values() if isinstance(nodes, dict) else [nodes]
        if not all(isinstance(each, dict) for each in declared):
            raise RequestFailed("/object_info is not an object of objects")
        self.nodes: Mapping[str, Mapping[str, Any]] = nodes
        """The declaration of each node type by its name."""
        self._inputs: dict[str, tuple[DeclaredInput, ...]] = {}

    def inputs(self, class_type: str) -> tuple[DeclaredInput, ...]:
        """Return the declared inputs of a node type. They are empty for an unknown type."""
        if (known := self._inputs.get(class_type)) is None and class_type in self.nodes:
            known = tuple(_inputs_of(class_type, self.nodes[class_type]))
            self._inputs[class_type] = known
        return known or ()

    def choices(self, class_type: str, input_name: str) -> tuple[str, ...] | None:
        """Return the texts that may be chosen for an input, or None if the input has no choices."""
        for declared in self.inputs(class_type):
            if declared.name == input_name and declared.choices is not None:
                return tuple([each for each in declared.choices if isinstance(each, str)])
        return None

    def with_files(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the declarations with these names as the choices of inputs that choose a file."""
        return {
            class_type: _with_files(declared, self.inputs(class_type), names)
            for class_type, declared in self.nodes.items()
        }

    def added_to(self, nodes: Mapping[str, Any], files: Sequence[str]) -> dict[str, Any]:
        """Return the declarations of `nodes` and of the node types that only this server has.

        The inputs of `nodes` also get the choices that only this server has, such as its models.
        For `files` see `with_files`.
        """
        both = {
            class_type: self._with_choices(class_type, declared)
            for class_type, declared in nodes.items()
        }
        return {**self.with_files(files), **both}

    def _with_choices(self, class_type: str, declared: Mapping[str, Any]) -> Mapping[str, Any]:
        more = {
            each.name: each.choices
            for each in self.inputs(class_type)
            if each.choices is not None and not each.is_file
        }
        groups = {
            group: {
                name: _with_more(config, more[name]) if name in more else config
                for name, config in inputs.items()
            }
            if group in _GROUPS
            else inputs
            for group, inputs in declared["input"].items()
        }
        return {**declared, "input": groups} if more else declared

    def has_input(self, class_type: str, input_name: str) -> bool:
        return any(each.name == input_name for each in self.inputs(class_type))

    def check(self, graph: Mapping[str, Any], files: Collection[str] = ()) -> None:
        """Raise PromptRefused if the server would certainly refuse a graph of sound structure.

        `files` are the names of input files in the graph. They need not be on the server yet.
        """
        missing = {
            node_id: node["class_type"]
            for node_id, node in graph.items()
            if node["class_type"] not in self.nodes
        }
        if missing:
            raise _missing_types(missing)
        outputs = {
            node_id
            for node_id, node in graph.items()
            if self.nodes[node["class_type"]].get("output_node") is True
        }
        if not outputs:
            message = "The prompt has no output node"
            raise PromptRefused(_error("prompt_no_outputs", message, "add a node that saves"), {})
        needed = _reachable(outputs, {node_id: _sources(node) for node_id, node in graph.items()})
        wrong = (
            (node_id, found)
            for node_id, node in graph.items()
            if node_id in needed and (found := list(self._errors(node, files)))
        )
        if errors := dict(islice(wrong, _SHOWN_NODES)):
            raise _invalid(graph, errors, outputs)

    def _errors(self, node: Mapping[str, Any], files: Collection[str]) -> Generator[dict[str, Any]]:
        class_type, given = node["class_type"], node.get("inputs") or {}
        is_core = str(self.nodes[class_type].get("python_module", "")).startswith(_CORE)
        for declared in self.inputs(class_type):
            if declared.name not in given:
                if declared.is_required and not declared.type.startswith(_DYNAMIC):
                    message = "A required input is missing"
                    yield _input_error("required_input_missing", message, declared.name)
                continue
            value = given[declared.name]
            is_file = isinstance(value, str) and value.removesuffix(INPUT_SUFFIX) in files
            is_link = isinstance(value, list | dict)
            if is_core and not (is_file or is_link or declared.is_file):
                yield from _value_errors(declared, value)


def _inputs_of(class_type: str, declared: Mapping[str, Any]) -> Generator[DeclaredInput]:
    groups = declared.get("input")
    for group in _GROUPS:
        inputs = groups.get(group) if isinstance(groups, dict) else None
        for name, config in inputs.items() if isinstance(inputs, dict) else ():
            if isinstance(config, list) and config:
                found = _declared_input(name, config, is_required=group == "required")
                is_file = any(found.options.get(each) for each in _UPLOADS)
                is_latent = class_type in _CHECKED_BY_NODE and found.choices is not None
                yield replace(found, is_file=is_file or is_latent)


def _with_files(
    declared: Mapping[str, Any], inputs: Sequence[DeclaredInput], names: Sequence[str]
) -> Mapping[str, Any]:
    """Return the declaration of a node type with other choices of files. Shares all other parts."""
    uploads = {each.name: each for each in inputs if each.is_file}
    if not uploads:
        return declared
    groups = {
        group: {
            name: _file_config(uploads[name], names) if name in uploads else config
            for name, config in group_inputs.items()
        }
        if group in _GROUPS and isinstance(group_inputs, dict)
        else group_inputs
        for group, group_inputs in declared["input"].items()
    }
    return {**declared, "input": groups}


def _file_config(declared: DeclaredInput, names: Sequence[str]) -> list[Any]:
    if "options" in declared.options:
        return [declared.type, {**declared.options, "options": list(names)}]
    return [list(names), dict(declared.options)]


def _with_more(config: Any, choices: Sequence[Any]) -> Any:
    """Return the declaration of an input, with these choices added."""
    if not isinstance(config[0], list):
        return config
    return [[*config[0], *(each for each in choices if each not in config[0])], *config[1:]]


def _declared_input(name: str, config: Sequence[Any], *, is_required: bool) -> DeclaredInput:
    """Return an input from its type, or the list of its choices, and its options."""
    kind = config[0]
    options = config[1] if len(config) > 1 and isinstance(config[1], dict) else {}
    if isinstance(kind, list):
        return DeclaredInput(name, "COMBO", is_required, kind, options)
    listed = options.get("options") if kind == "COMBO" and "remote" not in options else None
    choices = listed if isinstance(listed, list) and listed else None
    return DeclaredInput(name, str(kind), is_required, choices, options)


def _value_errors(declared: DeclaredInput, value: object) -> Generator[dict[str, Any]]:
    """Yield the errors of a literal. ComfyUI converts numbers and texts before it checks them."""
    name = declared.name
    if declared.choices is not None:
        if value not in declared.known and not declared.options.get("multiselect"):
            listed = ", ".join(map(str, declared.choices[:_SHOWN_VALUES]))
            more = " …" if len(declared.choices) > _SHOWN_VALUES else ""
            details = f"{name}: {_shown(value)} not in [{listed}{more}]"
            yield _input_error("value_not_in_list", "A value is not in its list", name, details)
        return
    if declared.type not in ("INT", "FLOAT"):
        return
    number = _number(value)
    if number is None:
        details = f"{name}: {_shown(value)} must be {declared.type}"
        yield _input_error("invalid_input_type", "A value has the wrong type", name, details)
        return
    least, most = (_number(declared.options.get(limit)) for limit in ("min", "max"))
    if least is not None and number < least:
        details = f"{name}: {_shown(value)}, at least {least:g}"
        yield _input_error("value_smaller_than_min", "A value is too small", name, details)
    if most is not None and number > most:
        details = f"{name}: {_shown(value)}, at most {most:g}"
        yield _input_error("value_bigger_than_max", "A value is too big", name, details)


def _number(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None


def _sources(node: Mapping[str, Any]) -> list[str]:
    """Return the ids of the nodes to which the inputs of a node are linked."""
    values = (node.get("inputs") or {}).values()
    return [
        each[0]
        for each in values
        if isinstance(each, list) and len(each) == 2 and isinstance(each[0], str)
    ]


def _reachable(starts: Iterable[str], links: Mapping[str, Collection[str]]) -> set[str]:
    found = set(starts)
    pending = list(found)
    while pending:
        new = [each for each in links.get(pending.pop(), ()) if each not in found]
        found.update(new)
        pending += new
    return found


def _missing_types(missing: Mapping[str, str]) -> PromptRefused:
    node_id, class_type = next(iter(missing.items()))
    types = ", ".join(dict.fromkeys(missing.values()))[:_MOST_SHOWN_CHARS]
    error = _error("missing_node_type", "The server has no such node type", types)
    extra_info = {"node_id": node_id, "class_type": class_type}
    return PromptRefused({**error, "extra_info": extra_info}, {})


def _invalid(
    graph: Mapping[str, Any], errors: Mapping[str, list[dict[str, Any]]], outputs: Collection[str]
) -> PromptRefused:
    """Return the error of a graph with errors in these nodes."""
    consumers: dict[str, list[str]] = {}
    for node_id, node in graph.items():
        for source in _sources(node):
            consumers.setdefault(source, []).append(node_id)
    node_errors = {}
    for node_id, found in errors.items():
        dependents = sorted(_reachable([node_id], consumers) & {*outputs})
        node_errors[node_id] = {
            "errors": found[:_SHOWN_NODES],
            "dependent_outputs": dependents[:_SHOWN_NODES],
            "class_type": graph[node_id]["class_type"],
        }
    node_id, [first, *_] = next(iter(errors.items()))
    where = f"node {node_id} ({graph[node_id]['class_type']})"
    details = f"{where}: {first['message']}: {first['details']}"
    error = _error("prompt_outputs_failed_validation", "The prompt is not valid", details)
    return PromptRefused(error, node_errors)


def _error(type: str, message: str, details: str) -> dict[str, Any]:
    return {"type": type, "message": message, "details": details, "extra_info": {}}


def _input_error(type: str, message: str, name: str, details: str = "") -> dict[str, Any]:
    error = _error(type, message, details or name)
    return {**error, "extra_info": {"input_name": name}}


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
