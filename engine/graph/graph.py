"""A valid graph: nodes, and the links between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.families.family import Family
from engine.graph.cost import Cost

SEED_INPUTS = ("seed", "noise_seed")
"""The names of the inputs that hold a node's seed."""

_OVERLAP = 4
_MOST_OVERLAP_BYTES = 128 * 2**20


@dataclass(frozen=True, slots=True)
class Source:
    """The output at which a link starts; `output` counts from 0."""

    node_id: str
    output: int


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a valid graph. The values in `literals` have the declared types."""

    id: str
    class_type: str
    literals: Mapping[str, Any]
    links: Mapping[str, Source]
    is_output: bool = False
    steps: int = 0
    input_files: tuple[str, ...] = ()
    families: Mapping[str, Family] = field(default_factory=dict)
    """The known family of each model that the node names, by input."""
    title: str | None = None
    """The title of the node in the caller's editor. The title has no effect."""
    sources: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """The ids of the nodes at which the links start, each once."""

    def __post_init__(self) -> None:
        sources = dict.fromkeys([source.node_id for source in self.links.values()])
        object.__setattr__(self, "sources", tuple(sources))

    @property
    def prompt(self) -> dict[str, Any]:
        links = {name: [source.node_id, source.output] for name, source in self.links.items()}
        written: dict[str, Any] = {
            "inputs": {**self.literals, **links},
            "class_type": self.class_type,
        }
        return written if self.title is None else {**written, "_meta": {"title": self.title}}


@dataclass(frozen=True)
class Graph:
    """The nodes that the output nodes depend on, in the order of the prompt."""

    nodes: tuple[Node, ...]
    cost: Cost = Cost()  # noqa: RUF009 - frozen
    node_bytes: Mapping[str, int] = field(default_factory=dict, repr=False, compare=False)
    """The estimated memory for the outputs and the body of each node, in bytes."""
    _by_id: dict[str, Node] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_id", {node.id: node for node in self.nodes})

    def node(self, node_id: str) -> Node:
        return self._by_id[node_id]

    @property
    def prompt(self) -> dict[str, Any]:
        """The graph in ComfyUI's API format. Its validation gives an equal graph.

        Nodes and inputs that have no effect are left out. Literals have their declared types.
        """
        return {node.id: node.prompt for node in self.nodes}

    @property
    def outputs(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.is_output)

    @property
    def overlap_bytes(self) -> int:
        """The bytes allowed for the values of nodes that run earlier than in `run_order`.

        This is an assumption and not a measurement: 4 x `live_bytes`, but at most 128 MiB.
        """
        return min(_MOST_OVERLAP_BYTES, _OVERLAP * self.cost.live_bytes)

    @property
    def need_bytes(self) -> int:
        """`live_bytes` and `overlap_bytes` together, without models and model calls."""
        return self.cost.live_bytes + self.overlap_bytes

    @property
    def total_steps(self) -> int:
        return sum(node.steps for node in self.nodes)

    @property
    def input_files(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for node in self.nodes for name in node.input_files))

    def seed_of(self, node_id: str) -> int | None:
        """Return the seed of the node, or of the nearest node upstream that has a seed."""
        queue = [node_id]
        seen = set(queue)
        for current in queue:
            node = self.node(current)
            for name in SEED_INPUTS:
                if isinstance(seed := node.literals.get(name), int):
                    return seed
            fresh = [source for source in node.sources if source not in seen]
            seen.update(fresh)
            queue += fresh
        return None


def run_order(graph: Graph) -> tuple[Node, ...]:
    """Return the order in which nodes run one by one: depth first from the outputs.

    In this order, an image is saved before the next image is made, and few values are alive at
    once.
    """
    done: dict[str, Node] = {}
    for output in graph.outputs:
        pending = [output]
        while pending:
            node = pending[-1]
            waits_for = [source for source in node.sources if source not in done]
            if waits_for and node.id not in done:
                pending += [graph.node(source) for source in reversed(waits_for)]
            else:
                done.setdefault(pending.pop().id, node)
    return tuple(done.values())
