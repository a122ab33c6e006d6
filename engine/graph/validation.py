"""Validates a prompt, which is a workflow in ComfyUI's API format.

The rules are ComfyUI's, with three differences: one error makes the whole graph invalid, any JSON
value raises nothing but GraphInvalid, and the service has limits of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import Any

from engine.errors import EngineError, GraphInvalid
from engine.families.family import Family
from engine.graph.catalogue import Catalogue
from engine.graph.costing import COST_TOO_HIGH, Excess, FileSizes, Ledger, ledger_of
from engine.graph.declarations import NodeType
from engine.graph.graph import Graph, Node
from engine.graph.graph_errors import InputError, graph_invalid, graph_too_costly
from engine.graph.inputs.checks import CheckedInputs, check_inputs, linked_values
from engine.graph.inputs.constants import Constants
from engine.graph.inputs.literals import is_unicode
from engine.graph.inputs.switches import without_switches
from engine.graph.limits import Limits

_SHOWN_CHARS = 100
_MAX_TITLE_CHARS = 128


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
    nodes = without_switches(_require_nodes(prompt, limits))
    types = {node_id: _require_type(node_id, node, catalogue) for node_id, node in nodes.items()}
    outputs = [node_id for node_id, declared in types.items() if declared.is_output]
    if not outputs:
        raise GraphInvalid("prompt_no_outputs", "The prompt has no output node", "add a SaveImage")
    listed = catalogue.snapshot()
    check = partial(check_inputs, catalogue=listed, limits=limits, input_files=input_files)
    constants = Constants(limits)
    checked = _check_reachable(nodes, types, outputs, check=check, constants=constants)
    errors = {node_id: list(each.errors) for node_id, each in checked.items() if each.errors}
    sources = {node_id: each.sources for node_id, each in checked.items()}
    if cycle := _find_cycle(sources):
        errors.setdefault(cycle[0], []).append(_cycle_error(cycle))
    if errors:
        raise graph_invalid(errors, sources, types)
    graph = _graph(nodes, types, checked, listed)
    known_types = {each.class_type: each for each in types.values()}
    ledger = _ledger(graph, known_types, limits, sizes=sizes)
    if isinstance(ledger, Excess):
        raise graph_too_costly(ledger.node_id, _too_costly(ledger), sources, types)
    return replace(graph, cost=ledger.cost, node_bytes=ledger.node_bytes)


def _require_nodes(prompt: object, limits: Limits) -> Mapping[str, Any]:
    if not isinstance(prompt, dict):
        raise GraphInvalid(
            "no_prompt", "No prompt", "prompt must be an object of nodes by their id"
        )
    if len(prompt) > limits.max_nodes:
        details = f"{len(prompt)} nodes, at most {limits.max_nodes} are taken"
        raise GraphInvalid("too_many_nodes", "The prompt has too many nodes", details)
    for node_id in prompt:
        if not isinstance(node_id, str) or not is_unicode(node_id):
            raise GraphInvalid("invalid_prompt", "A node id is not a string")
        if len(node_id) > limits.max_node_id_chars:
            details = (
                f"{node_id[:_SHOWN_CHARS]}… has {len(node_id)} characters, "
                f"at most {limits.max_node_id_chars} are taken"
            )
            raise GraphInvalid("invalid_prompt", "A node id is too long", details)
    return prompt


def _require_type(node_id: str, node: Any, catalogue: Catalogue) -> NodeType:
    class_type = node.get("class_type") if isinstance(node, dict) else None
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
    *,
    check: Callable[..., CheckedInputs],
    constants: Constants,
) -> dict[str, CheckedInputs]:
    """Check every node that an output needs, in the order of the prompt. All others are ignored.

    A node is checked after those that compute its values, unless they need it in turn.
    """
    checked: dict[str, CheckedInputs] = {}
    begun: set[str] = set()
    pending = list(outputs)
    while pending:
        node_id = pending.pop()
        if node_id in checked:
            continue
        given, declared = nodes[node_id].get("inputs"), types[node_id]
        if node_id not in begun:
            begun.add(node_id)
            if values := _pure_sources(given, declared, types):
                pending += [node_id, *values]
                continue
        inputs = given if isinstance(given, dict) else {}
        result = check(inputs, declared, types, constants=constants)
        if declared.is_pure and not result.errors and not result.links:
            error = constants.add(node_id, declared, result.literals)
            result.errors += [error] if error else []
        checked[node_id] = result
        pending += result.sources
    return {node_id: checked[node_id] for node_id in nodes if node_id in checked}


def _pure_sources(given: object, declared: NodeType, types: Mapping[str, NodeType]) -> list[str]:
    """The ids of the nodes that compute values for a node."""
    linked = linked_values(given, declared)
    return [each for each in linked if each in types and types[each].is_pure]


def _find_cycle(sources: Mapping[str, Sequence[str]]) -> list[str]:
    """A cycle of nodes; empty if there is none, which is told in a tenth of the time."""
    if _is_acyclic(sources):
        return []
    try:
        TopologicalSorter(sources).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle
    return []


def _is_acyclic(sources: Mapping[str, Sequence[str]]) -> bool:
    """Whether every node can run once those that it is linked to have run (Kahn's algorithm)."""
    consumers: dict[str, list[str]] = {node_id: [] for node_id in sources}
    waits_for = {node_id: len(linked) for node_id, linked in sources.items()}
    for node_id, linked in sources.items():
        for source in linked:
            consumers[source].append(node_id)
    ready = [node_id for node_id, count in waits_for.items() if not count]
    for done in ready:
        for node_id in consumers[done]:
            waits_for[node_id] -= 1
            if not waits_for[node_id]:
                ready.append(node_id)
    return len(ready) == len(sources)


def _cycle_error(cycle: list[str]) -> InputError:
    shown = cycle if len(cycle) <= 20 else [*cycle[:10], "…", *cycle[-9:]]
    return InputError("dependency_cycle", "Nodes need each other in a cycle", " → ".join(shown))


def _too_costly(excess: Excess) -> InputError:
    extra_info = {"limit": excess.limit, "received_value": excess.value, "max": excess.most}
    return InputError(COST_TOO_HIGH, "The graph costs too much", excess.message, extra_info)


def _ledger(
    graph: Graph, types: Mapping[str, NodeType], limits: Limits, *, sizes: FileSizes | None
) -> Ledger | Excess:
    try:
        return ledger_of(graph, types, limits, sizes=sizes)
    except GraphInvalid:
        raise
    except EngineError as error:
        message = "A node's cost cannot be told"
        raise GraphInvalid("custom_validation_failed", message, str(error)) from error


def _graph(
    nodes: Mapping[str, Any],
    types: Mapping[str, NodeType],
    checked: Mapping[str, CheckedInputs],
    catalogue: Catalogue,
) -> Graph:
    known_steps: dict[str, int] = {}
    needed = _needed(checked, [each for each in checked if types[each].is_output])
    made = [
        _node(
            node_id,
            types[node_id],
            each,
            steps=_steps(node_id, types, checked, known_steps),
            families=catalogue.families(types[node_id], each.literals),
            title=_title(nodes[node_id]),
        )
        for node_id, each in checked.items()
        if node_id in needed
    ]
    return Graph(tuple(made))


def _needed(checked: Mapping[str, CheckedInputs], outputs: Iterable[str]) -> set[str]:
    """The nodes that must run: those whose values are literals now need not."""
    needed: set[str] = set()
    pending = list(outputs)
    while pending:
        node_id = pending.pop()
        if node_id not in needed:
            needed.add(node_id)
            pending += [source.node_id for source in checked[node_id].links.values()]
    return needed


def _node(
    node_id: str,
    declared: NodeType,
    checked: CheckedInputs,
    *,
    steps: int,
    families: Mapping[str, Family],
    title: str | None,
) -> Node:
    literals = checked.literals
    return Node(
        node_id,
        declared.class_type,
        literals=literals,
        links=checked.links,
        is_output=declared.is_output,
        steps=steps,
        input_files=tuple([literals[name] for name in declared.file_inputs if name in literals]),
        families=families,
        title=title,
    )


def _title(node: Mapping[str, Any]) -> str | None:
    """The title in the member `_meta`, if there is one that can be shown."""
    meta = node.get("_meta")
    title = meta.get("title") if isinstance(meta, dict) else None
    if not isinstance(title, str) or len(title) > _MAX_TITLE_CHARS or not is_unicode(title):
        return None
    return title


def _steps(
    node_id: str,
    types: Mapping[str, NodeType],
    checked: Mapping[str, CheckedInputs],
    known: dict[str, int],
) -> int:
    """The sampler steps that a node takes. A node that makes sigmas takes none itself."""
    declared, literals = types[node_id], checked[node_id].literals
    if declared.steps_input is None or "SIGMAS" in declared.outputs:
        return 0
    steps = _given_steps(node_id, types, checked, known)
    if declared.steps_range is None:
        return steps
    first, last = declared.steps_range
    start, end = int(literals.get(first, 0)), int(literals.get(last, steps))
    return max(0, min(end, steps) - start)


def _given_steps(
    node_id: str,
    types: Mapping[str, NodeType],
    checked: Mapping[str, CheckedInputs],
    known: dict[str, int],
) -> int:
    """The steps input of a node, along links if need be. `known` remembers each node passed."""
    passed: list[str] = []
    while node_id not in known:
        passed.append(node_id)
        name = types[node_id].steps_input
        if name is None:
            known[node_id] = 0
        elif (source := checked[node_id].links.get(name)) is not None:
            node_id = source.node_id
        else:
            known[node_id] = checked[node_id].literals.get(name, 0)
    known.update(dict.fromkeys(passed, known[node_id]))
    return known[node_id]
