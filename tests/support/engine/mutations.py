"""Random requests of both flavours: valid ones with some changes.

The changes are drawn as numbers and not as values of hypothesis, which takes a tenth of the time.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from typing import Any

from engine.errors import GraphInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.declarations import Boolean, Choice, Float, Input, InputFile, Int, Link, String
from engine.graph.limits import Limits
from engine.graph.validation import validate
from engine.nodes import NODE_TYPES
from engine.webui.parameters import DiffusionParameters
from tests.support.comfyui.cases import CASES
from tests.support.engine.parity import SMALL
from tests.support.engine.workflows import TINY, text_to_image

Body = dict[str, Any]
_MOST_CHANGES = 6
_TYPES = {declared.class_type: declared for declared in NODE_TYPES}
_TEXTS = (
    *(
        "",
        " ",
        "\x00",
        "日本",
        "ä",
        "\U0001f600",
        "a" * 129,
        "a" * 40_000,
        "\n",
        "../x",
        "a.b",
        "4",
    ),
    *("NaN", "inf", "-Infinity", "1e999", "1e-999", "0x10", "١٢", "1_000", "-1", " 5 ", "9" * 4000),
    *("(a:1.2) [b:c:0.5] AND d", "(" * 60, "embedding:x", "<lora:x:1>", "a BREAK b", TINY, "euler"),
)
_NUMBERS = (
    *(0, 1, -1, 2, 7, 16, 64, 2**31, 2**53 + 1, 2**64 - 1, 2**64, -(2**63), 10**40, -(10**4000)),
    *(0.5, -0.0, 1e308, -1e308, 5e-324, 0.1, 63.999, 1e16),
)
_OTHERS: tuple[Any, ...] = (
    *(None, True, False, [], {}, [[]], [None], {"a": 1}, {"inputs": {}}, [["4", 0]] * 40),
    *(["4", 0], ["4", "0"], ["4", -1], ["4", 99], ["4", True], ["4", 0.0], ["no", 0], [4, 0]),
)
_TITLES = (None, 5, {"title": "KSampler"}, {"title": "\x00"}, {"title": 5}, {"title": "a" * 200})
_EXTRA_DATA = (
    *(None, [], "abc", {}, {"extra_pnginfo": "abc"}, {"extra_pnginfo": [1]}, {"client_id": "a"}),
    *({"extra_pnginfo": {name: {"日本": "ä\x00"}}} for name in ("workflow", "日本", "a" * 80, " ")),
    *({"extra_pnginfo": {"workflow": value}} for value in (*_NUMBERS, *_OTHERS, "a" * 70_000)),
    {"extra_pnginfo": {"prompt": 1, "seed": 2, "parameters": "x", "Comment": "ÿ"}},
)


_DEFAULTS = DiffusionParameters(prompt="").model_dump(mode="json")


class Requests:
    """Draws requests from the numbers of a random generator."""

    def __init__(self, catalogue: Catalogue) -> None:
        graphs = [_with_checkpoint(graph) for graph in CASES.values()]
        self._graphs = [text_to_image(), *_valid(graphs, catalogue)]

    def workflow(self, draw: random.Random) -> Any:
        """A workflow request with some changes; often it is valid."""
        graph = copy.deepcopy(draw.choice(self._graphs))
        for _ in range(_changes(draw)):
            _change(graph, draw)
        body: Body = {"prompt": graph}
        if draw.random() < 0.3:
            body["extra_data"] = draw.choice(_EXTRA_DATA)
        if draw.random() < 0.05:
            body[draw.choice(["prompt", "client_id", "number"])] = _junk(draw)
        return _junk(draw) if draw.random() < 0.01 else body

    def diffusion(self, draw: random.Random) -> Any:
        """A diffusion request with some members; often it is valid."""
        body: Body = {"prompt": draw.choice(_TEXTS), "width": 64, "height": 64, "steps": 2}
        if draw.random() < 0.3:
            body |= {"enable_hr": True, "hr_scale": draw.choice([1, 1.5, 2, "2"])}
        for _ in range(_changes(draw)):
            name = draw.choice(list(_DEFAULTS))
            body[name] = (
                _junk(draw) if draw.random() < 0.4 else draw.choice(_likely(_DEFAULTS[name]))
            )
        if draw.random() < 0.2:
            settings = ("sd_model_checkpoint", "sd_vae", "CLIP_stop_at_last_layers", "x")
            body["override_settings"] = {draw.choice(settings): draw.choice([TINY, 2, _junk(draw)])}
        if draw.random() < 0.05:
            body[draw.choice(_TEXTS)] = _junk(draw)
        return _junk(draw) if draw.random() < 0.01 else body


def _changes(draw: random.Random) -> int:
    """Return the number of changes; small numbers are more frequent."""
    return min(draw.randint(0, _MOST_CHANGES), draw.randint(0, _MOST_CHANGES))


def _likely(default: Any) -> tuple[Any, ...]:
    """Return values of a member, of which more than half are valid."""
    if isinstance(default, str):
        return (default, *_TEXTS)
    if isinstance(default, bool) or not isinstance(default, int | float):
        return (default, None)
    return (default, default + 1, str(default), 0, 1, 2, 16, 64, 0.5)


def _valid(graphs: list[Body], catalogue: Catalogue) -> list[Body]:
    """Return the graphs whose models the catalogue has, without unneeded nodes."""
    valid = []
    for graph in graphs:
        try:
            valid.append(validate(graph, catalogue, Limits()).prompt)
        except GraphInvalid:  # it names a missing model
            continue
    return valid


def _with_checkpoint(graph: Mapping[str, Any]) -> Body:
    """The graph with the tiny checkpoint."""
    changed = copy.deepcopy(dict(graph))
    for node in changed.values():
        for name, value in node["inputs"].items():
            if value == SMALL:
                node["inputs"][name] = TINY
    return changed


def _change(graph: Body, draw: random.Random) -> None:
    """Change one thing, most often a single input."""
    if not graph:
        return
    node_id = draw.choice(list(graph))
    node = graph[node_id]
    kind = draw.random()
    if kind < 0.1:
        _change_nodes(graph, node_id, draw)
    elif not _has_inputs(node):
        graph[node_id] = _junk(draw)
    elif kind < 0.2:
        _change_node(node, draw)
    else:
        _change_input(graph, node, draw)


def _change_nodes(graph: Body, node_id: str, draw: random.Random) -> None:
    match draw.randrange(6):
        case 0:
            del graph[node_id]
        case 1:
            graph[draw.choice(_TEXTS)] = graph[node_id]
        case 2:
            graph[node_id] = _junk(draw)
        case 3:
            graph[draw.choice(_TEXTS)] = {"class_type": "KSampler", "inputs": _junk(draw)}
        case 4:
            save = {"class_type": "SaveImage", "inputs": {"images": [node_id, 0]}}
            save["inputs"]["filename_prefix"] = draw.choice(_TEXTS)
            graph[draw.choice(_TEXTS)] = save
        case 5:
            _add_row(graph, node_id, draw)


def _add_row(graph: Body, node_id: str, draw: random.Random) -> None:
    """Add many copies of a node, each linked to the previous one; users of the node get the last
    one.
    """
    node = graph[node_id]
    inputs = node.get("inputs") if isinstance(node, dict) else None
    if not isinstance(inputs, dict):
        return
    links = [name for name, value in inputs.items() if isinstance(value, list)]
    if not links:
        return
    name, last = draw.choice(links), node_id
    consumers = [each["inputs"] for each in graph.values() if _has_inputs(each)]
    for number in range(draw.choice([10, 100, 900])):
        copied = {**node, "inputs": {**inputs, name: [last, 0]}}
        last = f"{number}~".ljust(draw.choice([1, 128]), draw.choice("aä"))
        graph[last] = copied
    for each in consumers:
        each |= {key: [last, 0] for key, value in each.items() if value == [node_id, 0]}


def _has_inputs(node: Any) -> bool:
    return isinstance(node, dict) and isinstance(node.get("inputs"), dict)


def _change_node(node: Body, draw: random.Random) -> None:
    match draw.randrange(5):
        case 0:
            node["class_type"] = draw.choice([draw.choice(list(_TYPES)), _junk(draw)])
        case 1:
            node["inputs"] = _junk(draw)
        case 2:
            node["_meta"] = draw.choice(_TITLES)
        case 3:
            node[draw.choice(_TEXTS)] = _junk(draw)
        case 4:
            node["inputs"][draw.choice(_TEXTS)] = _junk(draw)


def _change_input(graph: Body, node: Body, draw: random.Random) -> None:
    """Set an input to a value in its range, a link to some node, any value, or nothing."""
    declared = _TYPES.get(node.get("class_type")) if _is_text(node.get("class_type")) else None
    inputs = declared.all_inputs if declared else {}
    name = draw.choice([*inputs, *node["inputs"], "other"])
    kind = draw.random()
    if kind < 0.6 and name in inputs and not isinstance(inputs[name], Link):
        node["inputs"][name] = _fitting(inputs[name], draw)
    elif kind < 0.8:
        node["inputs"][name] = [draw.choice(list(graph)), draw.choice([0, 0, 0, 1, 2])]
    elif kind < 0.95:
        node["inputs"][name] = _junk(draw)
    else:
        node["inputs"].pop(name, None)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _fitting(declared: Input, draw: random.Random) -> Any:
    """Return a value of an input, at the ends of its range or in between, sometimes as a text."""
    match declared:
        case Int():
            ends = [declared.min, declared.min + 1, declared.max - 1, declared.max]
            number = draw.choice([*ends, declared.default, draw.randint(1, 100)])
            return draw.choice([number, number, str(number), float(min(number, 2**53))])
        case Float():
            inside = draw.uniform(declared.min, declared.max)
            number = draw.choice([declared.min, declared.max, declared.default, inside])
            return draw.choice([number, number, str(number), int(number)])
        case Choice():
            return draw.choice(declared.values or (TINY,))
        case Boolean():
            return draw.choice([True, False, 0, 1, "0", 0.5])
        case String() | InputFile() | Link():
            return draw.choice([*_TEXTS, *_NUMBERS])


def _junk(draw: random.Random) -> Any:
    """Return any JSON value."""
    match draw.randrange(5):
        case 0:
            return draw.choice(_NUMBERS)
        case 1:
            return draw.choice(_TEXTS)
        case 2:
            return draw.randint(-(2**70), 2**70)
        case 3:
            return _nested(draw.randint(1, 60), draw)
        case _:
            return draw.choice(_OTHERS)


def _nested(depth: int, draw: random.Random) -> Any:
    value: Any = None
    for _ in range(depth):
        value = [value] if draw.random() < 0.5 else {"inputs": value}
    return value
