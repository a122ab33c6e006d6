"""The protocols that the settings may enable, with their routes and error formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response
from starlette.routing import Route, WebSocketRoute

from serve_app.error_responses import ApiError
from serve_app.protocols.comfy_v2 import assets as comfy_v2_assets
from serve_app.protocols.comfy_v2 import errors as comfy_v2_errors
from serve_app.protocols.comfy_v2 import jobs as comfy_v2_jobs
from serve_app.protocols.comfyui import (
    bodies,
    catalogue,
    images,
    job_lists,
    page,
    prompts,
    user_files,
    websocket,
)
from serve_app.protocols.mcp import endpoint as mcp
from serve_app.protocols.openai import errors as openai_errors
from serve_app.protocols.openai import images as openai_images
from serve_app.protocols.webui import errors as webui_errors
from serve_app.protocols.webui import extras, generation, listings, options, running
from settings.http import ProtocolSettings

ErrorForm = Callable[[ApiError], Response]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpProtocol:
    name: str
    """The name of the setting that enables the protocol."""
    routers: tuple[APIRouter, ...]
    prefixes: tuple[str, ...] = ()
    """The path prefixes, without a final slash, below which errors have the protocol's format."""
    error_form: ErrorForm = ApiError.response
    """Builds the response to an error in the format of the protocol."""


_COMFYUI_ROUTERS = (
    prompts.router,
    job_lists.router,
    images.router,
    catalogue.router,
    page.state_router,
    user_files.router,
    websocket.router,
    page.router,
)


def _first_parts() -> list[str]:
    """Return the first path segments of ComfyUI's routes: `prompt`, `queue`, ..."""
    paths = {
        route.path.removeprefix(f"/{bodies.TWIN}")
        for router in _COMFYUI_ROUTERS
        for route in router.routes
        if isinstance(route, Route | WebSocketRoute)
    }
    return sorted({path.partition("/")[0] for path in paths if path and path[0] != "/"})


PROTOCOLS = (
    HttpProtocol(
        name="comfyui",
        routers=_COMFYUI_ROUTERS,
        prefixes=(
            "/comfy",
            *(f"/{prefix}{part}" for prefix in bodies.PATH_PREFIXES[:2] for part in _first_parts()),
        ),
        error_form=bodies.with_basic,
    ),
    HttpProtocol(
        name="comfy_v2",
        routers=(comfy_v2_assets.router, comfy_v2_jobs.router),
        prefixes=(comfy_v2_assets.PREFIX,),
        error_form=comfy_v2_errors.error_response,
    ),
    HttpProtocol(name="mcp", routers=(mcp.router,)),
    HttpProtocol(
        name="openai",
        routers=(openai_images.router,),
        prefixes=(openai_images.IMAGES,),
        error_form=openai_errors.error_response,
    ),
    HttpProtocol(
        name="webui",
        routers=tuple(each.router for each in (generation, extras, running, options, listings)),
        prefixes=(webui_errors.PREFIX,),
        error_form=webui_errors.error_response,
    ),
)


def protocols_of(settings: ProtocolSettings) -> tuple[HttpProtocol, ...]:
    """Return the protocols that the settings enable."""
    return tuple(each for each in PROTOCOLS if getattr(settings, each.name))


def error_forms(protocols: Iterable[HttpProtocol]) -> Callable[[Request], ErrorForm]:
    """Return a function that finds the error format for the path of a request."""
    forms = {prefix: each.error_form for each in protocols for prefix in each.prefixes}

    def form_of(request: Request) -> ErrorForm:
        path = request.scope["path"]
        for prefix, form in forms.items():
            if path == prefix or path.startswith(f"{prefix}/"):
                return form
        return ApiError.response

    return form_of
