"""Paths that ComfyUI has more than once: at the root, below `/api`, and where its page looks.

Each of them is below `/key/<key>`, too, for clients that have no place for a key but their address.
"""

from __future__ import annotations

from starlette.convertors import Convertor, register_url_convertor

from serve_app.adapters.credentials import PLACE

TWIN = f"{{{PLACE}:comfyui}}"
"""Stands behind the first slash of a path: one route for all of its twins."""
PLACES = ("", "api/", "comfy/api/", "comfy/")


class _Twin(Convertor[str]):
    regex = f"(?:key/[^/]+/)?(?:{'|'.join(PLACES[1:])})?"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("comfyui", _Twin())


def twin(path: str) -> str:
    """`/prompt` as a path of a route."""
    return f"/{TWIN}{path.removeprefix('/')}"
