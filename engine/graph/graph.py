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
    """The output at the start of a link; `output` counts from 0."""

    node_id: str
    output: int


@dataclass(frozen=True, slots=True)
class Node:
    """A node. Its literals have their declared types, and its links name their sources."""

    id: str
    class_type: str
    literals: Mapping[str, Any]
    links: Mapping[str, Source]
    is_output: bool = False
    steps: int = 0
    input_files: tuple[str, ...] = ()
    """The names of the files that the node reads."""
    families: Mapping[str, Family] = field(default_factory=dict)
    """The family of each model that the node names, by input, if the family is known from the file.
    """
    title: str | None = None
    """The title of the node in the caller's editor. The title has no effect."""
    sources: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """The ids of the nodes at the start of the links, each once."""

    def __post_init__(self) -> None:
        sources = dict.fromkeys([source.node_id for source in self.links.values()])
        object.__setattr__(self, "sources", tuple(sources))

    @property
    def prompt(self) -> dict[str, Any]:
        """The node in ComfyUI's API format."""
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
        """The graph in ComfyUI's API format. A validation of the result gives an equal graph.

        Nodes that no output needs are left out, and so are inputs that the node type does not
        declare. Literals have their declared types.
        """
        return {node.id: node.prompt for node in self.nodes}

    @property
    def outputs(self) -> tuple[Node, ...]:
        """The nodes whose images or latents are the job's results."""
        return tuple(node for node in self.nodes if node.is_output)

    @property
    def overlap_bytes(self) -> int:
        """An allowance for the values of nodes that run earlier than in `run_order`.

        It is an assumption and not a measurement: 4 x `live_bytes`, but at most 128 MiB.
        """
        return min(_MOST_OVERLAP_BYTES, _OVERLAP * self.cost.live_bytes)

    @property
    def need_bytes(self) -> int:
        """`live_bytes` and `overlap_bytes` together, without models and model calls."""
        return self.cost.live_bytes + self.overlap_bytes

    @property
    def total_steps(self) -> int:
        """The sampler steps of all nodes together."""
        return sum(node.steps for node in self.nodes)

    @property
    def input_files(self) -> tuple[str, ...]:
        """The names of the files that the nodes read, each once."""
        return tuple(dict.fromkeys(name for node in self.nodes for name in node.input_files))

    def seed_of(self, node_id: str) -> int | None:
        """The seed of the nearest node upstream that has a seed, usually the sampler."""
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
    """The order in which nodes run one by one: depth first from the outputs.

    So an image is saved before the next image is made, and few values are alive at once.
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
