"""Validates a prompt, which is a workflow in ComfyUI's API format.

The rules are ComfyUI's, with three differences: one error makes the whole graph invalid, every
invalid JSON value raises GraphInvalid and no other exception, and the service has its own limits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import Any

from engine.errors import COST_TOO_HIGH, MODEL_NOT_SUPPORTED, EngineError, GraphInvalid
from engine.families.family import Family
from engine.graph.catalogue import Catalogue
from engine.graph.cost import Cost
from engine.graph.declarations import Link, NodeType
from engine.graph.graph import SEED_INPUTS, Graph, Node, Source, run_order
from engine.graph.inputs import (
    INPUT_SUFFIX,
    CheckedInputs,
    Constants,
    InputError,
    check_inputs,
    finite_number,
    is_unicode,
    linked_values,
    whole_number,
)
from engine.graph.ledger import Excess, FileSizes, Ledger, ledger_of
from engine.graph.limits import Limits

_SHOWN_CHARS = 100
_SHOWN_TYPES = 20
_MAX_TITLE_CHARS = 128
_LORA_LOADER = "LoraLoader"
_MAX_DEPTH = 400
"""The largest number of nodes on a path of a graph for another engine, which may use recursion."""
_ASSUMED_RESULT_BYTES = 64 * 2**20
"""The size of the results of a graph whose outputs are not known."""


def validate(
    prompt: object,
    catalogue: Catalogue,
    limits: Limits,
    input_files: Collection[str] | None = None,
    *,
    sizes: FileSizes | None = None,
    draw_seed: Callable[[], int] | None = None,
) -> Graph:
    """Return the graph of a prompt, with its cost. Raises GraphInvalid.

    `input_files` are the names that an `InputFile` may have; None allows any name. `sizes` has the
    known widths and heights of input files. With `draw_seed`, each negative seed is replaced by a
    drawn seed.
    """
    if draw_seed is not None:
        prompt = resolve_seeds(prompt, draw_seed)
    require_text_budget(prompt, limits.max_request_chars)
    nodes = without_switches(_require_nodes(prompt, limits))
    declared_types = _require_types(nodes, catalogue)
    nodes = _without_links_to_savers(nodes, declared_types)
    types = _with_output_types(nodes, declared_types)
    outputs = [
        node_id
        for node_id, declared in types.items()
        if declared.is_output and not _is_unlinked(nodes[node_id], declared)
    ]
    if not outputs:
        message, details = "The prompt has no outputs", "add a SaveImage, and link an image to it"
        raise GraphInvalid("prompt_no_outputs", message, details)
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
    if problems := _model_errors(graph, types, listed):
        raise graph_invalid(problems, sources, types)
    graph = with_cost(graph, catalogue, limits, sizes=sizes)
    # A text that was linked to several nodes is now a literal of each node and counts each time.
    _require_chars((each.literals for each in graph.nodes), limits.max_request_chars)
    return graph


def parse_graph(
    prompt: object,
    catalogue: Catalogue,
    limits: Limits,
    *,
    draw_seed: Callable[[], int] | None = None,
) -> Graph:
    """Return the graph of a prompt whose node types another engine knows. Raises GraphInvalid.

    Only the structure is checked: ids, types, links and sizes. The cost is an assumption, and no
    node is known to be an output. For `draw_seed` see `validate`.
    """
    if draw_seed is not None:
        prompt = resolve_seeds(prompt, draw_seed)
    require_text_budget(prompt, limits.max_request_chars)
    nodes = _require_nodes(prompt, limits)
    if not nodes:
        raise GraphInvalid("prompt_no_outputs", "The prompt has no nodes", "add an output node")
    graph = Graph(
        tuple(_parse_node(node_id, node, nodes, catalogue) for node_id, node in nodes.items()),
        Cost(result_bytes=_ASSUMED_RESULT_BYTES),
    )
    sources = {node.id: node.sources for node in graph.nodes}
    if cycle := _find_cycle(sources):
        raise GraphInvalid("dependency_cycle", "The nodes form a cycle", " → ".join(cycle[:20]))
    if (depth := _depth(sources)) > _MAX_DEPTH:
        details = f"a path has {depth} nodes, but at most {_MAX_DEPTH} are allowed"
        raise GraphInvalid("too_deep", "The graph is too deep", details)
    return graph


def _depth(sources: Mapping[str, Sequence[str]]) -> int:
    """Return the number of nodes on the longest path of a graph without a cycle."""
    depths: dict[str, int] = {}
    for node_id in TopologicalSorter(sources).static_order():
        depths[node_id] = 1 + max((depths[source] for source in sources[node_id]), default=0)
    return max(depths.values())


def _parse_node(node_id: str, node: Any, nodes: Mapping[str, Any], catalogue: Catalogue) -> Node:
    class_type = node.get("class_type") if isinstance(node, dict) else None
    if not isinstance(class_type, str) or not class_type:
        raise GraphInvalid("missing_node_type", "A node has no class_type", f"node {node_id}")
    inputs = node.get("inputs", {})
    if not isinstance(inputs, dict):
        raise GraphInvalid("invalid_prompt", "The inputs are not an object", f"node {node_id}")
    links = {name: value for name, value in inputs.items() if _is_link(value)}
    for name, (source, _) in links.items():
        if source not in nodes:
            details = f"node {node_id}, input {name}: there is no node {source[:_SHOWN_CHARS]}"
            raise GraphInvalid("invalid_prompt", "A link starts at a missing node", details)
    literals = {name: value for name, value in inputs.items() if name not in links}
    try:
        json.dumps([class_type, literals], ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        details = f"node {node_id}: {error}"
        raise GraphInvalid("invalid_prompt", "A node is not valid JSON", details) from error
    declared = catalogue.node(class_type)
    names = declared.file_inputs if declared else ()
    files = [literals[name] for name in names if name in literals]
    if not all(isinstance(each, str) for each in files):
        raise GraphInvalid("invalid_prompt", "A file is not named by a text", f"node {node_id}")
    return Node(
        node_id,
        class_type,
        literals=literals,
        links={name: Source(source, int(output)) for name, (source, output) in links.items()},
        input_files=tuple([each.removesuffix(INPUT_SUFFIX) for each in files]),
        title=_title(node),
    )


def _is_link(value: object) -> bool:
    """Whether a value of an input is a link, as ComfyUI decides it: an id and an output number."""
    return (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[0], str)
        and isinstance(value[1], int | float)
    )


def require_text_budget(prompt: object, max_chars: int) -> None:
    """Raise GraphInvalid if the texts of all nodes together have more than `max_chars`.

    `prompt` need not be valid.
    """
    nodes = prompt.values() if isinstance(prompt, dict) else ()
    inputs = [node.get("inputs") for node in nodes if isinstance(node, dict)]
    _require_chars((each for each in inputs if isinstance(each, dict)), max_chars)


def _require_chars(inputs: Iterable[Mapping[str, Any]], max_chars: int) -> None:
    chars = sum(len(text) for each in inputs for text in each.values() if isinstance(text, str))
    if chars > max_chars:
        details = f"the texts have {chars} characters, but at most {max_chars} are allowed"
        raise GraphInvalid("too_much_text", "The texts of the prompt are too long", details)


def with_cost(
    graph: Graph, catalogue: Catalogue, limits: Limits, *, sizes: FileSizes | None = None
) -> Graph:
    """Return a valid graph with its cost, for input files of these sizes. Raises GraphInvalid."""
    types = _types_of(graph, catalogue)
    known_types = {each.class_type: each for each in types.values()}
    ledger = _ledger(graph, known_types, limits, sizes=sizes)
    if isinstance(ledger, Excess):
        sources = {node.id: node.sources for node in graph.nodes}
        raise graph_too_costly(ledger.node_id, _too_costly(ledger), sources, types)
    return replace(graph, cost=ledger.cost, node_bytes=ledger.node_bytes)


def _types_of(graph: Graph, catalogue: Catalogue) -> dict[str, NodeType]:
    types: dict[str, NodeType] = {}
    for node in graph.nodes:
        declared = catalogue.node(node.class_type)
        assert declared is not None  # The graph is valid, so the type of each node is known.
        types[node.id] = declared
    return types


def input_file_refused(graph: Graph, catalogue: Catalogue, name: str, reason: str) -> GraphInvalid:
    """Return the error of a valid graph with an image file that cannot be used.

    The error names the first node that reads the file, but not the file itself.
    """
    node = next(each for each in graph.nodes if name in each.input_files)
    named = (name, f"{name}{INPUT_SUFFIX}")
    input_name = next(key for key, value in node.literals.items() if value in named)
    error = InputError(
        "custom_validation_failed",
        "The image cannot be used",
        f"{input_name}: {reason}",
        extra_info={"input_name": input_name},
    )
    sources = {each.id: each.sources for each in graph.nodes}
    return graph_invalid({node.id: [error]}, sources, _types_of(graph, catalogue))


def _require_nodes(prompt: object, limits: Limits) -> Mapping[str, Any]:
    if not isinstance(prompt, dict):
        raise GraphInvalid(
            "no_prompt", "No prompt", "prompt must be an object of nodes by their id"
        )
    if len(prompt) > limits.max_nodes:
        details = f"the prompt has {len(prompt)} nodes, but at most {limits.max_nodes} are allowed"
        raise GraphInvalid("too_many_nodes", "The prompt has too many nodes", details)
    for node_id in prompt:
        if not isinstance(node_id, str) or not is_unicode(node_id):
            raise GraphInvalid("invalid_prompt", "A node id is not a string")
        if len(node_id) > limits.max_node_id_chars:
            details = (
                f"{node_id[:_SHOWN_CHARS]}… has {len(node_id)} characters, but at most "
                f"{limits.max_node_id_chars} are allowed"
            )
            raise GraphInvalid("invalid_prompt", "A node id is too long", details)
    return prompt


def _require_types(nodes: Mapping[str, Any], catalogue: Catalogue) -> dict[str, NodeType]:
    """Return the type of each node. Raises GraphInvalid with the names of all unknown types."""
    types: dict[str, NodeType] = {}
    unknown: dict[str, str] = {}
    for node_id, node in nodes.items():
        class_type = node.get("class_type") if isinstance(node, dict) else None
        if not isinstance(class_type, str):
            raise GraphInvalid("missing_node_type", "A node has no class_type", f"node {node_id}")
        if (declared := catalogue.node(class_type)) is None:
            unknown.setdefault(class_type, node_id)
        else:
            types[node_id] = declared
    if unknown:
        raise missing_node_types(unknown)
    return types


def missing_node_types(unknown: Mapping[str, str]) -> GraphInvalid:
    """Return the error for unknown node types, each with the id of a node."""
    class_type, node_id = next(iter(unknown.items()))
    shown = ", ".join(name[:_SHOWN_CHARS] for name in [*unknown][:_SHOWN_TYPES])
    return GraphInvalid(
        "missing_node_type",
        "There is no such node type",
        f"node {node_id[:_SHOWN_CHARS]}: {shown}",
        extra_info={"node_id": node_id, "class_type": class_type},
    )


def _is_unlinked(node: Mapping[str, Any], declared: NodeType) -> bool:
    """Whether nothing is linked to an output node that has only optional links, such as
    ImageCompare. It would save nothing, and ComfyUI shows nothing for it.
    """
    links = {name for name, each in declared.optional.items() if isinstance(each, Link)}
    return bool(links) and not declared.inputs and links.isdisjoint(_inputs(node))


def _check_reachable(
    nodes: Mapping[str, Any],
    types: Mapping[str, NodeType],
    outputs: list[str],
    *,
    check: Callable[..., CheckedInputs],
    constants: Constants,
) -> dict[str, CheckedInputs]:
    """Check every node that an output needs, in the order of the prompt. Ignore all other nodes.

    A node is checked after the nodes that compute its values, except in a cycle of nodes.
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
    linked = linked_values(given, declared)
    return [each for each in linked if each in types and types[each].is_pure]


def _find_cycle(sources: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a cycle of nodes, or an empty list.

    Most graphs have no cycle, which `_is_acyclic` finds out in a tenth of the time of a search.
    """
    if _is_acyclic(sources):
        return []
    try:
        TopologicalSorter(sources).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle
    return []


def _is_acyclic(sources: Mapping[str, Sequence[str]]) -> bool:
    """Whether an order exists in which every node runs after its sources (Kahn's algorithm)."""
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
    return InputError("dependency_cycle", "The nodes form a cycle", " → ".join(shown))


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
        message = "The cost of a node cannot be computed"
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
    """Return the ids of the nodes that must run: not those whose values are now literals."""
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


def _model_errors(
    graph: Graph, types: Mapping[str, NodeType], catalogue: Catalogue
) -> dict[str, list[InputError]]:
    """Return the errors of nodes that cannot use a model file which they name or that is linked."""
    uses = _uses_of(graph, types)
    errors: dict[str, list[InputError]] = {}
    for node in graph.nodes:
        problems = catalogue.model_problems(types[node.id], node.literals, uses[node.id])
        for name, problem in problems.items():
            extra_info = {"input_name": name, "received_value": node.literals[name]}
            message = "A model file is not supported"
            error = InputError(MODEL_NOT_SUPPORTED, message, f"{name}: {problem}", extra_info)
            errors.setdefault(node.id, []).append(error)
    for node_id, (name, problem) in catalogue.control_problems(graph).items():
        message, details = "The ControlNet cannot be used in this way", f"{name}: {problem}"
        error = InputError("custom_validation_failed", message, details, {"input_name": name})
        errors.setdefault(node_id, []).append(error)
    return errors


def _uses_of(graph: Graph, types: Mapping[str, NodeType]) -> dict[str, set[str]]:
    """Return the types of the outputs of each node that are used.

    A LoRA changes a text encoder, but does not use it.
    """
    uses: dict[str, set[str]] = {node.id: set() for node in graph.nodes}
    for node in reversed(run_order(graph)):
        for source in node.links.values():
            kind = types[source.node_id].outputs[source.output]
            if node.class_type != _LORA_LOADER or kind != "CLIP" or kind in uses[node.id]:
                uses[source.node_id].add(kind)
    return uses


def _title(node: Mapping[str, Any]) -> str | None:
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
    """Return the number of sampler steps of a node, which is 0 for a node that makes sigmas."""
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
    """Return the steps input of a node. If it is a link, return the steps of the linked node.

    `known` caches the results.
    """
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


_SHOWN_ERRORS = 50
"""The largest number of errors that one response shows. The response also counts all errors."""
_SHOWN_OUTPUTS = 50
"""The largest number of ids in one list of dependent outputs."""
_SHOWN_OUTPUTS_IN_ALL = 200
"""The largest number of ids in all lists of dependent outputs of one response."""


def graph_invalid(
    errors: Mapping[str, Sequence[InputError]],
    sources: Mapping[str, Sequence[str]],
    types: Mapping[str, NodeType],
) -> GraphInvalid:
    node_errors = _node_errors(errors, sources, types)
    node_id, first = next(iter(errors.items()))
    where = f"node {node_id} ({types[node_id].class_type})"
    return GraphInvalid(
        "prompt_outputs_failed_validation",
        "The prompt is not valid",
        f"{where}: {first[0].message}: {first[0].details}",
        extra_info={
            "errors": sum(len(found) for found in errors.values()),
            "errors_shown": sum(len(each["errors"]) for each in node_errors.values()),
        },
        node_errors=node_errors,
    )


def graph_too_costly(
    node_id: str,
    error: InputError,
    sources: Mapping[str, Sequence[str]],
    types: Mapping[str, NodeType],
) -> GraphInvalid:
    return GraphInvalid(
        error.type,
        error.message,
        error.details,
        extra_info={**error.extra_info, "node_id": node_id},
        node_errors=_node_errors({node_id: [error]}, sources, types),
    )


def _node_errors(
    errors: Mapping[str, Sequence[InputError]],
    sources: Mapping[str, Sequence[str]],
    types: Mapping[str, NodeType],
) -> dict[str, Any]:
    consumers = _consumers(sources)
    shown: dict[str, Any] = {}
    errors_left, outputs_left = _SHOWN_ERRORS, _SHOWN_OUTPUTS_IN_ALL
    for node_id, found in errors.items():
        if not errors_left:
            break
        most = min(_SHOWN_OUTPUTS, outputs_left)
        outputs = _dependent_outputs(node_id, consumers, types, most=most)
        bodies = [error.body() for error in found[:errors_left]]
        shown[node_id] = {
            "errors": bodies,
            "dependent_outputs": outputs,
            "class_type": types[node_id].class_type,
        }
        errors_left -= len(bodies)
        outputs_left -= len(outputs)
    return shown


def _consumers(sources: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    consumers: dict[str, list[str]] = {node_id: [] for node_id in sources}
    for node_id, linked in sources.items():
        for source in dict.fromkeys(linked):
            consumers[source].append(node_id)
    return consumers


def _dependent_outputs(
    node_id: str,
    consumers: Mapping[str, Sequence[str]],
    types: Mapping[str, NodeType],
    *,
    most: int,
) -> list[str]:
    """Return at most `most` output nodes that need a node, the nearest first."""
    found: list[str] = []
    reached = {node_id}
    pending = [node_id]
    for current in pending:
        if len(found) >= most:
            break
        if types[current].is_output:
            found.append(current)
        fresh = [each for each in consumers[current] if each not in reached]
        reached.update(fresh)
        pending += fresh
    return found


def resolve_seeds(prompt: object, draw: Callable[[], int]) -> Any:
    """Return the prompt with a drawn seed in place of each negative seed.

    `prompt` need not be valid. Malformed parts are not changed.
    """
    if not isinstance(prompt, dict):
        return prompt
    return {node_id: _with_drawn_seeds(node, draw) for node_id, node in prompt.items()}


def _with_drawn_seeds(node: Any, draw: Callable[[], int]) -> Any:
    inputs = node.get("inputs") if isinstance(node, dict) else None
    if not isinstance(inputs, dict):
        return node
    drawn = {name: draw() for name in SEED_INPUTS if _is_negative(inputs.get(name))}
    return {**node, "inputs": {**inputs, **drawn}} if drawn else node


def _is_negative(value: Any) -> bool:
    number = whole_number(value)
    return number is not None and number < 0


_SWITCH = "ComfySwitchNode"
_TRUTH = "PrimitiveBoolean"


def without_switches(nodes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the nodes with each link to a switch replaced by the input that the switch chooses.

    Only the chosen branch is then checked, counted and run, and it may have any type. The choice
    must be a literal or come from a PrimitiveBoolean with a literal. Any other link to a switch is
    kept, and its type is then an error.
    """
    if not any(_class_type(node) == _SWITCH for node in nodes.values()):
        return nodes
    chosen: dict[str, Any] = {}
    return {node_id: _relinked(node, nodes, chosen) for node_id, node in nodes.items()}


def _relinked(node: Any, nodes: Mapping[str, Any], chosen: dict[str, Any]) -> Any:
    inputs = _inputs(node)
    if _class_type(node) == _SWITCH or not inputs:
        return node
    return {**node, "inputs": {name: _value(each, nodes, chosen) for name, each in inputs.items()}}


def _value(given: Any, nodes: Mapping[str, Any], chosen: dict[str, Any]) -> Any:
    passed: dict[str, None] = {}
    value = given
    while (switch := _linked(value, nodes, _SWITCH)) is not None:
        if switch in chosen:
            value = chosen[switch]
            break
        if switch in passed:  # This is a cycle of switches, which chooses nothing.
            value = [switch, 0]
            break
        passed[switch] = None
        inputs = _inputs(nodes[switch])
        truth = _truth(inputs.get("switch"), nodes)
        name = "on_true" if truth else "on_false"
        if truth is None or name not in inputs:
            value = [switch, 0]
            break
        value = inputs[name]
    chosen.update(dict.fromkeys(passed, value))
    return value


def _without_links_to_savers(
    nodes: Mapping[str, Any], types: Mapping[str, NodeType]
) -> Mapping[str, Any]:
    """Return the nodes with each link to an output node that passes on an input replaced by that
    input's own link.
    """
    names = {node_id: each.passed_input for node_id, each in types.items() if each.passed_input}
    sources = _followed(_possible_links(nodes, names))
    if not sources:
        return nodes
    return {node_id: _with_links(node, sources) for node_id, node in nodes.items()}


def _possible_links(nodes: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, list[Any]]:
    """Return the input of that name of each node, if it is a list and so may be a link."""
    given = {node_id: _inputs(nodes[node_id]).get(name) for node_id, name in names.items()}
    return {node_id: value for node_id, value in given.items() if isinstance(value, list)}


def _followed(links: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Follow each link to the first output of another key through that key to its source.

    Links that lead into a cycle are left out.
    """
    sources: dict[str, list[Any] | None] = {}
    for start in links:
        passed: list[str] = []
        at: str | None = start
        link: list[Any] | None = None
        while at is not None and at in links and at not in sources:
            sources[at] = None  # It stays None in a cycle.
            passed.append(at)
            link = links[at]
            at = _first_output_of(link)
        source = sources[at] if at is not None and at in sources else link
        sources |= dict.fromkeys(passed, source)
    return {key: link for key, link in sources.items() if link is not None}


def _first_output_of(value: Any) -> str | None:
    """Return the node whose first output a value links to, or None."""
    match value:
        case [str() as node_id, int() as output] if output == 0 and output is not False:
            return node_id
        case _:
            return None


def _with_links(node: Any, sources: Mapping[str, list[Any]]) -> Any:
    inputs = _inputs(node)
    linked = {name: _first_output_of(value) for name, value in inputs.items()}
    changed = {
        name: sources[each] for name, each in linked.items() if each is not None and each in sources
    }
    return {**node, "inputs": {**inputs, **changed}} if changed else node


def _with_output_types(
    nodes: Mapping[str, Any], types: Mapping[str, NodeType]
) -> dict[str, NodeType]:
    """Return the node types. An output whose type follows an input gets the linked type."""
    names = {node_id: each.type_follows for node_id, each in types.items() if each.type_follows}
    found = dict(types)
    for node_id, link in _followed(_possible_links(nodes, names)).items():
        match link:
            case [str() as source, int() as output] if source in types:
                outputs = types[source].outputs
                allowed = types[node_id].outputs[0].split(",")
                if 0 <= output < len(outputs) and outputs[output] in allowed:
                    found[node_id] = replace(types[node_id], outputs=(outputs[output],))
            case _:
                pass
    return found


def _truth(given: Any, nodes: Mapping[str, Any]) -> bool | None:
    """Return a truth value, also from a primitive node, or None if only the run knows it."""
    if (primitive := _linked(given, nodes, _TRUTH)) is not None:
        given = _inputs(nodes[primitive]).get("value")
    if isinstance(given, bool):
        return given
    number = finite_number(given)
    return None if number is None else number != 0


def _linked(value: Any, nodes: Mapping[str, Any], class_type: str) -> str | None:
    node_id = _first_output_of(value)
    is_linked = node_id is not None and _class_type(nodes.get(node_id)) == class_type
    return node_id if is_linked else None


def _class_type(node: Any) -> Any:
    return node.get("class_type") if isinstance(node, dict) else None


def _inputs(node: Any) -> dict[str, Any]:
    inputs = node.get("inputs") if isinstance(node, dict) else None
    return inputs if isinstance(inputs, dict) else {}
