"""How ComfyUI names a result: file name, subfolder and type. `/view` finds it by them."""

from __future__ import annotations

import re
from typing import Any

from events.types import ImageStored
from storage.keys import PNG, SAFETENSORS, file_name

_NAME = re.compile(r"darkroom_(?P<number>[0-9]{5,7})_\.(?P<suffix>[a-z]{1,8})")
_TEMPORARY = "PreviewImage"


def shown_name(image: ImageStored) -> str:
    """The subfolder is the job's id, so that no two results have one name."""
    suffix = file_name(image.index, image.media_type).rpartition(".")[2]
    return f"darkroom_{image.index + 1:05}_.{suffix}"


def index_in(name: str) -> int | None:
    """None for a name that is none of ours."""
    parts = _NAME.fullmatch(name)
    return None if parts is None else int(parts["number"]) - 1


def outputs_of(
    images: tuple[ImageStored, ...], prompt: dict[str, Any], *, job_id: str
) -> dict[str, dict[str, Any]]:
    """The results by the node that made them, as ComfyUI's history has them."""
    outputs: dict[str, dict[str, Any]] = {}
    for image in images:
        node = _first_output(prompt) if image.node is None else image.node
        kind = "latents" if image.media_type == SAFETENSORS else "images"
        is_temporary = class_of(node, prompt) == _TEMPORARY
        shown = {
            "filename": shown_name(image),
            "subfolder": job_id,
            "type": "temp" if is_temporary else "output",
        }
        outputs.setdefault(node, {}).setdefault(kind, []).append(shown)
    return outputs


def class_of(node: str, prompt: dict[str, Any]) -> str:
    return str(prompt.get(node, {}).get("class_type", ""))


def media_type_of(image: ImageStored) -> str:
    return image.media_type or PNG


def _first_output(prompt: dict[str, Any]) -> str:
    """Older versions did not record which node an image is of; mostly there is one."""
    saved = (node for node in prompt if class_of(node, prompt).startswith(("Save", "Preview")))
    return next(saved, next(iter(prompt), ""))
