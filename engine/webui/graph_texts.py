"""Reads the settings of an image from the graph in ComfyUI's API format that made it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

_VALUES = ("value", "string", "text", "int", "float", "seed", "number")
"""The inputs in which nodes for single values have their value."""
_TEXTS = ("text", "t5xxl", "text_g", "clip_l", "prompt", "string", "value")
_WITHOUT_PART = {
    *("SaveImage", "PreviewImage", "VAEDecode", "VAEDecodeTiled", "ConditioningZeroOut"),
    *("CLIPLoader", "DualCLIPLoader", "KSamplerSelect", "Reroute", "Note"),
}
"""The types of nodes that need not be read."""
_NO_TEXT = "ConditioningZeroOut"
_MOST_NODES = 1000


class GraphReader:
    """Follows the links of a graph from its first sampler to the values."""

    def __init__(self, graph: Mapping[str, Any]) -> None:
        """Raises ValueError if the graph has too many nodes."""
        if len(graph) > _MOST_NODES:
            raise ValueError(f"a graph has more than {_MOST_NODES} nodes")
        self._nodes = {
            id: node
            for id, node in graph.items()
            if isinstance(node, dict) and isinstance(node.get("inputs"), dict)
        }
        self._read: set[str] = set()

    def settings(self) -> dict[str, Any]:
        """Return the settings of the first sampler by the names of the WebUI's text."""
        start = self._first_sampler()
        if start is None:
            return {}
        self._read.add(start)
        inputs = self._inputs(start)
        guider = self._inputs(_node_of(inputs.get("guider")))
        if guider:
            self._read.add(inputs["guider"][0])
        sigmas, latent = inputs.get("sigmas"), inputs.get("latent_image")
        positive = inputs.get("positive") or guider.get("positive") or guider.get("conditioning")
        negative = inputs.get("negative") or guider.get("negative")
        model = inputs.get("model") or guider.get("model") or sigmas
        skipped = self._found(positive, ("stop_at_clip_layer",), int)
        sides = [
            self._found(latent, (side, f"empty_latent_{side}"), int) for side in ("width", "height")
        ]
        return {
            "prompt": self._found(positive, (*_TEXTS, "positive"), str),
            "negative prompt": self._found(negative, (*_TEXTS, "negative"), str),
            "Steps": self._value(inputs, "steps", int) or self._found(sigmas, ("steps",), int),
            "Sampler": self._value(inputs, "sampler_name", str)
            or self._found(inputs.get("sampler"), ("sampler_name",), str),
            "Schedule type": self._value(inputs, "scheduler", str)
            or self._found(sigmas, ("scheduler",), str),
            "CFG scale": self._value(inputs, "cfg", float) or self._value(guider, "cfg", float),
            "Distilled CFG Scale": self._found(positive, ("guidance",), float),
            "Seed": self._seed(inputs),
            "Size": "x".join(map(str, sides)) if all(sides) else None,
            "Model": self._found(model, ("ckpt_name", "unet_name"), str),
            "VAE": next(self._everywhere("vae_name"), None),
            "Clip skip": abs(skipped) if skipped else None,
            "loras": list(self._loras(model)),
        }

    def unread(self) -> dict[str, str]:
        """Return the ids of the nodes that were not read, by their type."""
        found: dict[str, str] = {}
        for id, node in self._nodes.items():
            kind = str(node.get("class_type"))
            if id not in self._read and kind not in _WITHOUT_PART:
                found[kind] = f"{found[kind]}, {id}" if kind in found else id
        return found

    def _inputs(self, id: str | None) -> dict[str, Any]:
        return self._nodes[id]["inputs"] if id in self._nodes else {}

    def _first_sampler(self) -> str | None:
        """Return the id of a sampler whose latent is not from another sampler."""
        samplers = {
            id: None
            for id, node in self._nodes.items()
            if node["inputs"].keys() >= {"steps", "sampler_name"}
            or node["inputs"].keys() >= {"sampler", "sigmas"}
        }
        for id in samplers:
            before = self._upstream(self._nodes[id]["inputs"].get("latent_image"))
            if not any(each in samplers for each in before):
                return id
        return next(iter(samplers), None)

    def _seed(self, inputs: Mapping[str, Any]) -> Any:
        for name in ("seed", "noise_seed"):
            if (seed := self._value(inputs, name, int)) is not None:
                return seed
        return self._found(inputs.get("noise"), ("noise_seed", "seed"), int)

    def _value(self, inputs: Mapping[str, Any], name: str, kind: type) -> Any:
        """Return the value of an input, which may be linked from another node."""
        value = inputs.get(name)
        if _node_of(value) is None:
            return value if _is_of(value, kind) else None
        return self._found(value, (name, *_VALUES), kind)

    def _found(self, link: Any, names: tuple[str, ...], kind: type) -> Any:
        """Return the first input with one of the names, at a link or before it."""
        for id in self._upstream(link):
            inputs = self._inputs(id)
            for name in names:
                if _is_of(inputs.get(name), kind) and inputs[name] != "":
                    self._read.add(id)
                    return inputs[name]
        return None

    def _everywhere(self, name: str) -> Iterator[Any]:
        for id, node in self._nodes.items():
            if _is_of(value := node["inputs"].get(name), str):
                self._read.add(id)
                yield value

    def _loras(self, model: Any) -> Iterator[tuple[str, Any]]:
        for id in self._upstream(model):
            inputs = self._inputs(id)
            name, weight = inputs.get("lora_name"), inputs.get("strength_model")
            listed = [each for each in inputs.values() if isinstance(each, dict) and each.get("on")]
            found = [(name, weight), *((each.get("lora"), each.get("strength")) for each in listed)]
            for name, weight in found:
                if isinstance(name, str) and name != "None" and _is_of(weight, float):
                    self._read.add(id)
                    yield name.rpartition("/")[2].removesuffix(".safetensors"), weight

    def _upstream(self, link: Any) -> Iterator[str]:
        """Yield the ids of the linked node and of all nodes before it, the nearest first."""
        waiting, seen = deque([link]), set()
        while waiting:
            link = waiting.popleft()
            id = _node_of(link)
            if id is None or id in seen or id not in self._nodes:
                continue
            seen.add(id)
            node = self._nodes[id]
            if node.get("class_type") == _NO_TEXT:
                continue
            yield id
            inputs = node["inputs"]
            sides = [inputs.get("positive"), inputs.get("negative")]
            if all(sides) and link[1] in (0, 1):  # A node that passes both conditionings on.
                waiting.append(sides[link[1]])
            else:
                waiting.extend(inputs.values())


def _node_of(value: Any) -> str | None:
    """Return the id of the node that a value links to, or None for another value."""
    is_link = isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)
    return value[0] if is_link and isinstance(value[1], int) else None


def _is_of(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int | float) if kind is float else isinstance(value, kind)
