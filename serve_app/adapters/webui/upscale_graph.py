"""Enlarged images as a graph. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.graph.models_folder import ModelsFolder
from engine.webui.upscalers import Upscaler, upscaler_named
from events.store.records import Upload
from serve_app.adapters.graphs import node, whole_cells
from serve_app.adapters.webui.errors import refused

_MIN_SIDE = 8
_NO_UPSCALER = "None"


@dataclass(frozen=True, slots=True, kw_only=True)
class Enlarging:
    first: str
    """The name of an upscaler."""
    second: str
    second_share: float
    """How much of the second one's image is in the result."""
    factor: float | None
    """None: `size` is meant."""
    size: tuple[int, int]
    crops: bool
    """What does not fit into `size` is cut off evenly; else the image covers it."""

    def sides(self, upload: Upload) -> tuple[int, int]:
        """Of the result, in pixels."""
        width, height = upload.width, upload.height
        if self.factor is None and self.crops:
            return self.size
        factor = self.factor or max(self.size[0] / width, self.size[1] / height)
        return _side(width * factor), _side(height * factor)


def upscale_graph(
    wanted: Enlarging, uploads: Sequence[Upload], models: ModelsFolder
) -> dict[str, Any]:
    """In ComfyUI's API format, with an output for each upload, in order.

    Raises ApiError 400 for an upscaler that is not known, ModelsUnavailable.
    """
    graph: dict[str, Any] = {}
    asked = [wanted.first]
    if wanted.second_share > 0 and wanted.second != _NO_UPSCALER:
        asked.append(wanted.second)
    upscalers = [_upscaler(name, models) for name in asked]
    for number, upscaler in enumerate(upscalers):
        if upscaler is not None and upscaler.by == "model":
            graph[f"model-{number}"] = node("UpscaleModelLoader", model_name=upscaler.name)
    for place, upload in enumerate(uploads):
        graph[f"image-{place}"] = node("LoadImage", image=upload.name)
        made = [
            _enlarge(graph, number, upscaler, place=place, sides=wanted.sides(upload))
            for number, upscaler in enumerate(upscalers)
        ]
        if len(made) > 1:
            share = wanted.second_share
            graph[f"both-{place}"] = node(
                "ImageBlend",
                image1=made[0],
                image2=made[1],
                blend_factor=share,
                blend_mode="normal",
            )
            made = [[f"both-{place}", 0]]
        graph[f"save-{place}"] = node("SaveImage", images=made[0], filename_prefix="extras")
    return graph


def _upscaler(name: str, models: ModelsFolder) -> Upscaler | None:
    if name == _NO_UPSCALER:
        return None
    found = upscaler_named(name, models)
    if found is None or found.by == "latent":
        raise refused(f"There is no upscaler {name[:80]!r}; GET /sdapi/v1/upscalers lists them.")
    return found


def _enlarge(
    graph: dict[str, Any],
    number: int,
    upscaler: Upscaler | None,
    *,
    place: int,
    sides: tuple[int, int],
) -> list[Any]:
    """Writes the nodes of one image by one upscaler. Without one it stays as it is."""
    image: list[Any] = [f"image-{place}", 0]
    if upscaler is None:
        return image
    width, height = sides
    method = upscaler.name
    if upscaler.by == "model":
        upscaled = f"upscaled-{place}-{number}"
        graph[upscaled] = node(
            "WebUIImageUpscale",
            upscale_model=[f"model-{number}", 0],
            image=image,
            width=width,
            height=height,
        )
        image, method = [upscaled, 0], "lanczos"
    sized = f"sized-{place}-{number}"
    graph[sized] = node(
        "ImageScale", image=image, upscale_method=method, width=width, height=height, crop="center"
    )
    return [sized, 0]


def _side(side: float) -> int:
    return max(_MIN_SIDE, whole_cells(side))
