"""Replaces Darkroom's own nodes in the graph of a diffusion request with core nodes of ComfyUI."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from engine.errors import FieldError, ParametersInvalid
from engine.webui.parameters import DiffusionParameters
from engine.webui.prompt import Part, Section, read_negative_prompt, read_prompt

_Link: TypeAlias = list[Any]

_MEMBER_OF = {
    "WebUILatentUpscale": "hr_upscaler",
    "WebUISampler": "override_settings.eta_noise_seed_delta",
}
"""The member of a request with ComfyUI's compatibility that leads to a node of our own."""
_LATENT_METHODS = ("nearest-exact", "bilinear", "bicubic")
"""The methods of `WebUILatentUpscale` that ComfyUI's `LatentUpscale` has, too."""
_TEXTS = {
    "text": ("prompt", read_prompt),
    "negative_text": ("negative_prompt", read_negative_prompt),
}
"""The texts of a `WebUITextEncode` in the order of its outputs, with their members."""


def require_core_members(parameters: DiffusionParameters) -> None:
    """Raise ParametersInvalid if the request has values that only the WebUI has."""
    asked = {
        "compatibility": parameters.compatibility == "webui",
        "override_settings.emphasis": parameters.override_settings.emphasis != "Original",
    }
    names = [name for name, is_asked in asked.items() if is_asked]
    _refuse([*names, *parameters.members_of_webui()])


def with_core_nodes(prompt: Mapping[str, Any], parameters: DiffusionParameters) -> dict[str, Any]:
    """Return the graph of a request with ComfyUI's compatibility, with core nodes only.

    Weights in a prompt then have the effect that they have in `CLIPTextEncode`. Raises
    ParametersInvalid with the members for which ComfyUI has no core node.
    """
    nodes: dict[str, Any] = {}
    encoded: dict[tuple[str, int], _Link] = {}
    """The links that replace the links to the outputs of each `WebUITextEncode`."""
    refused: list[str] = []
    for node_id, node in prompt.items():
        class_type, inputs = node["class_type"], node["inputs"]
        if class_type == "WebUITextEncode":
            counted = {"steps": inputs["steps"], "steps_before": inputs["steps_before"]}
            for output, (name, (member, read)) in enumerate(_TEXTS.items()):
                parts = read(inputs[name], **counted)
                if not _is_constant(parts):
                    is_hires = node_id.startswith("hires-") and getattr(parameters, f"hr_{member}")
                    refused.append(f"hr_{member}" if is_hires else member)
                    continue
                added = _encoded(f"{node_id}-{output}", parts[0].stretches[0].sections, inputs)
                nodes |= added
                encoded[node_id, output] = [next(reversed(added)), 0]
        elif class_type == "WebUILatentUpscale" and inputs["upscale_method"] in _LATENT_METHODS:
            nodes[node_id] = {**node, "class_type": "LatentUpscale"}
        elif class_type in _MEMBER_OF:
            refused.append(_MEMBER_OF[class_type])
        else:
            nodes[node_id] = node
    _refuse(refused)
    return {node_id: _relinked(node, encoded) for node_id, node in nodes.items()}


def _refuse(members: Iterable[str]) -> None:
    message = (
        "has a value that needs Darkroom's own engine, because the core nodes of ComfyUI do not "
        "have it: change it, or name another endpoint"
    )
    errors = [FieldError("not_supported", message, name) for name in dict.fromkeys(members)]
    if errors:
        raise ParametersInvalid(tuple(errors))


def _is_constant(parts: Sequence[Part]) -> bool:
    """Whether a prompt is one text for all steps, without a weight of the whole text."""
    return len(parts) == 1 and parts[0].weight == 1.0 and len(parts[0].stretches) == 1


def _encoded(
    name: str, sections: Sequence[Section], inputs: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the nodes that encode a text in sections. The last node has the conditioning."""
    nodes: dict[str, dict[str, Any]] = {}

    def add(suffix: str, class_type: str, **inputs: Any) -> _Link:
        nodes[name + suffix] = {"class_type": class_type, "inputs": inputs}
        return [name + suffix, 0]

    texts = [_written(section) for section in sections]
    while len(texts) > 1 and not texts[-1].strip():
        texts.pop()  # A BREAK at the end begins no chunk.
    link: _Link = []
    for number, written in enumerate(texts):
        text = add(f"-{number}", "CLIPTextEncode", clip=inputs["clip"], text=written)
        link = (
            add(
                f"-joined-{number}",
                "ConditioningConcat",
                conditioning_to=link,
                conditioning_from=text,
            )
            if link
            else text
        )
    if "guidance" in inputs:
        add("-guided", "FluxGuidance", conditioning=link, guidance=inputs["guidance"])
    return nodes


def _written(section: Section) -> str:
    """Return a section in ComfyUI's syntax, in which square brackets are plain text."""
    written = ""
    for words, weight in section:
        escaped = re.sub(r"([()])", r"\\\1", words)
        if written.endswith("\\"):
            written += " "  # Otherwise, the backslash would escape the bracket.
        written += escaped if weight == 1.0 else f"({escaped}:{weight:g})"
    return written


def _relinked(node: dict[str, Any], links: Mapping[tuple[str, int], _Link]) -> dict[str, Any]:
    inputs = {
        name: links.get((value[0], value[1]), value) if isinstance(value, list) else value
        for name, value in node["inputs"].items()
    }
    return {**node, "inputs": inputs}
