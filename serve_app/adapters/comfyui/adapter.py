"""ComfyUI's API as an adapter."""

from __future__ import annotations

from serve_app.adapters.adapter import Adapter
from serve_app.adapters.comfyui import (
    catalogue,
    history,
    page,
    page_state,
    prompts,
    queue,
    uploads,
    view,
)
from serve_app.adapters.comfyui.listening import websocket
from serve_app.adapters.comfyui.refusals import with_basic
from serve_app.adapters.comfyui.twins import PLACES, TWIN
from serve_app.adapters.comfyui.user import data, settings

_ROUTERS = tuple(
    module.router
    for module in (
        prompts,
        queue,
        history,
        view,
        uploads,
        catalogue,
        page_state,
        settings,
        data,
        websocket,
        page,
    )
)


def _first_parts() -> list[str]:
    """What follows the place in the paths of the routes: `prompt`, `queue`, ..."""
    paths = {route.path.removeprefix(f"/{TWIN}") for each in _ROUTERS for route in each.routes}
    return sorted({path.partition("/")[0] for path in paths if path and path[0] != "/"})


COMFYUI = Adapter(
    name="comfyui",
    routers=_ROUTERS,
    prefixes=("/comfy", *(f"/{place}{part}" for place in PLACES[:2] for part in _first_parts())),
    error_form=with_basic,
)
