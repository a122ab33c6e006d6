"""Lists samplers, upscalers and models in the WebUI's format."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Depends, Request

from engine.interface import Catalogue
from serve_app.protocols.credentials import READ, ReadProtocolKey
from serve_app.protocols.webui.errors import V1, refused
from serve_app.protocols.webui.options import endpoint_of
from serve_app.replica import JobAccessDep, SubmissionDep

_UNKNOWN = {"error": "Other processes make the images, so their memory use is not known here."}

router = APIRouter(prefix=V1, include_in_schema=False, dependencies=[Depends(READ)])

_Names: TypeAlias = Callable[[str], Awaitable[Sequence[str]]]
"""Returns the names of the models in a folder. Raises ModelsUnavailable."""


async def _names_of(request: Request, submission: SubmissionDep, key: ReadProtocolKey) -> _Names:
    """Return the function for the endpoint that the query names, or for the default endpoint."""
    endpoint = await endpoint_of(request, submission, key)
    return partial(submission.acceptance.model_names, endpoint, key)


NamesDep = Annotated[_Names, Depends(_names_of)]


@router.get("/samplers")
async def samplers() -> list[dict[str, Any]]:
    return [
        {"name": row.label, "aliases": [row.name, *row.aliases], "options": {}}
        for row in Catalogue.SAMPLERS
        if not row.draws_path_on_device
    ]


@router.get("/schedulers")
async def schedulers() -> list[dict[str, Any]]:
    rows = [
        {"name": row.name, "label": row.label, "aliases": [*row.aliases]}
        for row in Catalogue.SCHEDULERS
    ]
    every = [{"name": "automatic", "label": "Automatic", "aliases": []}, *rows]
    return [each | {"default_rho": -1.0, "need_inner_model": False} for each in every]


@router.get("/upscalers")
async def upscalers(names: NamesDep) -> list[dict[str, Any]]:
    plain = [name for name, each in Catalogue.UPSCALERS.items() if each.by == "pixels"]
    models = await names("upscale_models")
    return [_upscaler(name) for name in (*plain, *map(_stem, models))]


@router.get("/latent-upscale-modes")
async def latent_upscale_modes() -> list[dict[str, str]]:
    return [{"name": name} for name, each in Catalogue.UPSCALERS.items() if each.by == "latent"]


@router.get("/sd-models")
async def checkpoints(names: NamesDep) -> list[dict[str, Any]]:
    """List the checkpoints. Hashes are left out, because they would require reading large files."""
    return [
        {
            "title": name,
            "model_name": _stem(name),
            "hash": None,
            "sha256": None,
            "filename": name,
            "config": None,
        }
        for name in await names("checkpoints")
    ]


@router.get("/sd-vae")
async def vaes(names: NamesDep) -> list[dict[str, Any]]:
    return [{"model_name": name, "filename": name} for name in await names("vae")]


@router.get("/loras")
async def loras(names: NamesDep) -> list[dict[str, Any]]:
    return [
        {"name": _stem(name), "alias": _stem(name), "path": name, "metadata": {}}
        for name in await names("loras")
    ]


@router.get("/embeddings")
async def embeddings(names: NamesDep) -> dict[str, Any]:
    unknown = dict.fromkeys(("step", "sd_checkpoint", "sd_checkpoint_name", "shape", "vectors"))
    loaded = {_stem(name): unknown for name in await names("embeddings")}
    return {"loaded": loaded, "skipped": {}}


@router.get("/prompt-styles")
async def prompt_styles(access: JobAccessDep) -> list[dict[str, Any]]:
    styles = await asyncio.to_thread(access.catalogue.styles)
    return [
        {"name": name, "prompt": each.prompt, "negative_prompt": each.negative_prompt}
        for name, each in styles.items()
    ]


@router.get("/hypernetworks")
@router.get("/face-restorers")
@router.get("/realesrgan-models")
@router.get("/extensions")
@router.get("/script-info")
async def nothing() -> list[Any]:
    return []


@router.get("/scripts")
async def scripts() -> dict[str, list[str]]:
    return {"txt2img": [], "img2img": []}


@router.get("/cmd-flags")
async def flags() -> dict[str, Any]:
    return {"api": True, "nowebui": True}


@router.get("/memory")
async def memory() -> dict[str, Any]:
    return {"ram": _UNKNOWN, "cuda": _UNKNOWN}


@router.post("/refresh-checkpoints")
@router.post("/refresh-vae")
@router.post("/refresh-loras")
@router.post("/refresh-embeddings")
async def refresh() -> None:
    """Do nothing, because each list of models is read when it is requested."""


@router.post("/interrogate")
@router.post("/unload-checkpoint")
@router.post("/reload-checkpoint")
async def not_here() -> None:
    raise refused("Darkroom has no such function. Models are loaded when a job needs them.")


def _upscaler(name: str) -> dict[str, Any]:
    return {"name": name, "model_name": None, "model_path": None, "model_url": None, "scale": 4.0}


def _stem(name: str) -> str:
    return str(PurePosixPath(name).with_suffix(""))
