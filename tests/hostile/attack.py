"""One hostile request, ready to be sent, and how graphs for it are written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.service import CHECKPOINT

WORKFLOW = "/workflow/v1/generate"
DIFFUSION = "/diffusion/v1/generate"

Node = dict[str, Any]
Nodes = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Attack:
    """What is sent. It is JSON unless `headers` say otherwise."""

    name: str
    path: str
    content: bytes = b""
    method: str = "POST"
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


def post(name: str, path: str, body: Any, **query: str) -> Attack:
    """A body that `json` can write; NaN and Infinity go out as Python writes them."""
    return Attack(name, path, json.dumps(body).encode(), params=query)


def workflow(name: str, prompt: Any, **members: Any) -> Attack:
    return post(name, WORKFLOW, {"prompt": prompt, **members})


def diffusion(name: str, **changes: Any) -> Attack:
    body = {
        "prompt": "a red circle",
        "width": 64,
        "height": 64,
        "steps": 2,
        "seed": 7,
        "sd_model_checkpoint": CHECKPOINT,
    }
    return post(name, DIFFUSION, body | changes)


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
    sampler = {
        "model": ["4", 0],
        "positive": ["6", 0],
        "negative": ["7", 0],
        "latent_image": ["5", 0],
        "seed": 7,
        "steps": 2,
        "cfg": 7,
        "sampler_name": "euler",
        "scheduler": "normal",
        "denoise": 1,
    }
    return {
        "3": node("KSampler", **sampler | changes),
        "4": node("CheckpointLoaderSimple", ckpt_name=CHECKPOINT),
        "5": latent_image or latent(),
        "6": node("CLIPTextEncode", clip=["4", 1], text="a red circle"),
        "7": node("CLIPTextEncode", clip=["4", 1], text=""),
        "8": node("VAEDecode", samples=["3", 0], vae=["4", 2]),
        "9": save("8"),
    }


def chain(first: str, count: int, link: Any) -> tuple[Nodes, str]:
    """`count` nodes in a row after node `first`, each `link(id of the one before)`.

    Returns the nodes and the id of the last.
    """
    nodes: Nodes = {}
    last = first
    for number in range(count):
        nodes[f"c{number}"] = link(last)
        last = f"c{number}"
    return nodes, last
