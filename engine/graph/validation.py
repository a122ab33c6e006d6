"""Validates a prompt, which is a workflow in ComfyUI's API format.

The rules are ComfyUI's, with three differences: one error makes the whole graph invalid, any JSON
value raises nothing but GraphInvalid, and the service has limits of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import Any

from engine.errors import GraphInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.costing import Excess, FileSizes, ledger_of
from engine.graph.declarations import InputFile, NodeType
from engine.graph.graph import Graph, Node
from engine.graph.input_errors import InputError
from engine.graph.inputs import CheckedInputs, check_inputs
from engine.graph.limits import Limits


def validate(
    prompt: object,
    catalogue: Catalogue,
    limits: Limits,
    input_files: Collection[str] | None = None,
    *,
    sizes: FileSizes | None = None,
) -> Graph:
    """The graph of a prompt, with its cost. Raises GraphInvalid.

    `input_files` are the names that an `InputFile` may have; None allows any name. `sizes` has the
    width and height of those that are known.
    """
    nodes = _require_nodes(prompt, limits)
    types = {node_id: _require_type(node_id, node, catalogue) for node_id, node in nodes.items()}
    outputs = [node_id for node_id, declared in types.items() if declared.is_output]
    if not outputs:
        raise GraphInvalid("prompt_no_outputs", "The prompt has no output node", "add a SaveImage")
    check = partial(check_inputs, catalogue=catalogue, limits=limits, input_files=input_files)
    checked = _check_reachable(nodes, types, outputs, check)
    errors = {node_id: list(each.errors) for node_id, each in checked.items() if each.errors}
    if cycle := _find_cycle(checked):
        errors.setdefault(cycle[0], []).append(_cycle_error(cycle))
    if errors:
        raise _graph_invalid(errors, checked, types, outputs)
    graph = Graph(
        tuple(
            _node(i, types[i], checked[i], _steps(i, types, checked)) for i in nodes if i in checked
        )
    )
    ledger = ledger_of(graph, {each.class_type: each for each in types.values()}, sizes)
    if excess := ledger.excess(limits):
        raise _too_costly(excess, checked, types, outputs)
    return replace(graph, cost=ledger.cost)


def _require_nodes(prompt: object, limits: Limits) -> Mapping[str, Any]:
    if not isinstance(prompt, Mapping):
        raise GraphInvalid(
            "no_prompt", "No prompt", "prompt must be an object of nodes by their id"
        )
    if len(prompt) > limits.max_nodes:
        details = f"{len(prompt)} nodes, at most {limits.max_nodes} are taken"
        raise GraphInvalid("too_many_nodes", "The prompt has too many nodes", details)
    if not all(isinstance(node_id, str) for node_id in prompt):
        raise GraphInvalid("invalid_prompt", "A node id is not a string")
    return prompt


def _require_type(node_id: str, node: Any, catalogue: Catalogue) -> NodeType:
    class_type = node.get("class_type") if isinstance(node, Mapping) else None
    if not isinstance(class_type, str):
        raise GraphInvalid("missing_node_type", "A node has no class_type", f"node {node_id}")
    declared = catalogue.node(class_type)
    if declared is None:
        details = f"node {node_id}: {class_type}"
        extra = {"node_id": node_id, "class_type": class_type}
        raise GraphInvalid(
            "missing_node_type", "A node type is not known", details, extra_info=extra
        )
    return declared


def _check_reachable(
    nodes: Mapping[str, Any],
    types: Mapping[str, NodeType],
    outputs: list[str],
    check: Callable[[Mapping[str, Any], NodeType, Mapping[str, NodeType]], CheckedInputs],
) -> dict[str, CheckedInputs]:
    """Check every node that an output needs. All other nodes are ignored."""
    checked: dict[str, CheckedInputs] = {}
    pending = list(outputs)
    while pending:
        node_id = pending.pop()
        if node_id in checked:
            continue
        given = nodes[node_id].get("inputs")
        inputs = given if isinstance(given, Mapping) else {}
        result = check(inputs, types[node_id], types)
        checked[node_id] = result
        pending += result.sources
    return checked


def _find_cycle(checked: Mapping[str, CheckedInputs]) -> list[str]:
    try:
        TopologicalSorter({i: each.sources for i, each in checked.items()}).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle
    return []


def _cycle_error(cycle: list[str]) -> InputError:
    shown = cycle if len(cycle) <= 20 else [*cycle[:10], "…", *cycle[-9:]]
    return InputError("dependency_cycle", "Nodes need each other in a cycle", " → ".join(shown))


def _graph_invalid(
    errors: Mapping[str, list[InputError]],
    checked: Mapping[str, CheckedInputs],
    types: Mapping[str, NodeType],
    outputs: list[str],
) -> GraphInvalid:
    dependents = _dependent_outputs(checked, outputs)
    node_errors = {
        node_id: {
            "errors": [error.body() for error in found],
            "dependent_outputs": dependents(node_id),
            "class_type": types[node_id].class_type,
        }
        for node_id, found in errors.items()
    }
    first_id, first = next(iter(errors.items()))
    return GraphInvalid(
        "prompt_outputs_failed_validation",
        "The prompt is not valid",
        f"node {first_id} ({types[first_id].class_type}): {first[0].message}: {first[0].details}",
        node_errors=node_errors,
    )


def _too_costly(
    excess: Excess,
    checked: Mapping[str, CheckedInputs],
    types: Mapping[str, NodeType],
    outputs: list[str],
) -> GraphInvalid:
    extra = {"limit": excess.limit, "received_value": excess.value, "max": excess.most}
    error = InputError("cost_too_high", "The graph costs too much", excess.message, extra)
    node_error = {
        "errors": [error.body()],
        "dependent_outputs": _dependent_outputs(checked, outputs)(excess.node_id),
        "class_type": types[excess.node_id].class_type,
    }
    return GraphInvalid(
        error.type,
        error.message,
        error.details,
        extra_info=extra | {"node_id": excess.node_id},
        node_errors={excess.node_id: node_error},
    )


def _dependent_outputs(
    checked: Mapping[str, CheckedInputs], outputs: list[str]
) -> Callable[[str], list[str]]:
    """Returns a function that lists the outputs that need a node. Bit masks keep this fast."""
    masks = dict.fromkeys(checked, 0)
    for position, node_id in enumerate(outputs):
        masks[node_id] |= 1 << position
    pending = list(outputs)
    while pending:
        node_id = pending.pop()
        for source in checked[node_id].sources:
            merged = masks[source] | masks[node_id]
            if merged != masks[source]:
                masks[source] = merged
                pending.append(source)
    return lambda node_id: [o for n, o in enumerate(outputs) if masks[node_id] >> n & 1]


def _node(node_id: str, declared: NodeType, checked: CheckedInputs, steps: int) -> Node:
    files = [name for name, each in declared.all_inputs.items() if isinstance(each, InputFile)]
    return Node(
        node_id,
        declared.class_type,
        literals=checked.literals,
        links=checked.links,
        is_output=declared.is_output,
        steps=steps,
        input_files=tuple(checked.literals[name] for name in files if name in checked.literals),
    )


def _steps(
    node_id: str, types: Mapping[str, NodeType], checked: Mapping[str, CheckedInputs]
) -> int:
    """The sampler steps that a node takes. A node that makes sigmas takes none itself."""
    declared, literals = types[node_id], checked[node_id].literals
    if declared.steps_input is None or "SIGMAS" in declared.outputs:
        return 0
    name: str | None = declared.steps_input
    while name is not None and (source := checked[node_id].links.get(name)) is not None:
        node_id = source.node_id
        name = types[node_id].steps_input
    steps: int = checked[node_id].literals.get(name, 0) if name is not None else 0
    if declared.steps_range is None:
        return steps
    first, last = declared.steps_range
    start, end = int(literals.get(first, 0)), int(literals.get(last, steps))
    return max(0, min(end, steps) - start)
