"""One hostile request, ready to be sent, and how graphs for it are written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.support.service import diffusion as small_diffusion
from tests.support.service import workflow as text_to_image

WORKFLOW = "/workflow/v1/generate"
DIFFUSION = "/diffusion/v1/generate"

Node = dict[str, Any]
Nodes = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Attack:
    """The request. It is JSON unless `headers` say otherwise."""

    name: str
    path: str
    content: bytes = b""
    method: str = "POST"
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


def post(name: str, path: str, body: Any, **query: str) -> Attack:
    """Return a request with a body that `json` can write; NaN and Infinity are sent as Python
    writes them.
    """
    return Attack(name, path, json.dumps(body).encode(), params=query)


def get(name: str, path: str, headers: Mapping[str, str] | None = None, **query: str) -> Attack:
    return Attack(name, path, method="GET", params=query, headers=headers or {})


def workflow(name: str, prompt: Any, **members: Any) -> Attack:
    return post(name, WORKFLOW, {"prompt": prompt, **members})


def diffusion(name: str, **changes: Any) -> Attack:
    return post(name, DIFFUSION, small_diffusion(steps=2) | changes)


def node(class_type: str, **inputs: Any) -> Node:
    return {"class_type": class_type, "inputs": inputs}


def blank(side: int = 64, **changes: Any) -> Node:
    """An image without any model."""
    inputs = {"width": side, "height": side, "batch_size": 1, "color": 0}
    return node("EmptyImage", **inputs | changes)


def latent(side: int = 64, batch_size: int = 1) -> Node:
    return node("EmptyLatentImage", width=side, height=side, batch_size=batch_size)


def save(source: str, prefix: str = "hostile") -> Node:
    return node("SaveImage", images=[source, 0], filename_prefix=prefix)


def easy() -> Nodes:
    """The smallest valid graph: it needs no model and no step."""
    return {"1": blank(), "2": save("1")}


def sampled(latent_image: Node | None = None, **changes: Any) -> Nodes:
    """A text-to-image graph; `changes` are inputs of its KSampler."""
    nodes: Nodes = text_to_image(steps=2)["prompt"]
    nodes["3"]["inputs"] |= changes
    return nodes | {"5": latent_image or latent(), "9": save("8")}


Link = Callable[[str], Node]
"""Makes the node after the one with this id."""


def chain(first: str, count: int, link: Link) -> tuple[Nodes, str]:
    """Return `count` nodes in a row after node `first`, and the id of the last."""
    ids = [first, *(f"c{number}" for number in range(count))]
    return {id: link(before) for before, id in pairwise(ids)}, ids[-1]


def images(count: int, link: Link, first: Node | None = None) -> Nodes:
    """Return a graph that saves an image after `count` nodes in a row; `first`: or a blank one."""
    nodes, last = chain("1", count, link)
    return {"1": first or blank(), **nodes, "2": save(last)}


def inverted(source: str) -> Node:
    return node("ImageInvert", image=[source, 0])
