"""Routes in ComfyUI's format that list node types, models, features and system data."""

from __future__ import annotations

import asyncio
import sys
from pathlib import PurePosixPath
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from engine.interface import Catalogue
from events.store.records import DEFAULT_ENDPOINT
from serve_app.answers import in_thread
from serve_app.error_responses import not_found
from serve_app.protocols.comfyui.bodies import members, twin
from serve_app.protocols.credentials import READ, ReadProtocolKey
from serve_app.replica import JobAccess, JobAccessDep, SubmissionDep
from serve_app.routes.catalogue import node_types, object_info
from serve_app.routes.generate import EndpointId
from settings.version import VERSION

_OTHER_FOLDERS = (
    "configs",
    "clip_vision",
    "style_models",
    "diffusers",
    "vae_approx",
    "gligen",
    "latent_upscale_models",
    "custom_nodes",
    "photomaker",
    "classifiers",
    "model_patches",
    "audio_encoders",
)
"""ComfyUI's folders of models that Darkroom does not list in `GET /v1/models`."""
FOLDERS = tuple(dict.fromkeys((*Catalogue.MODEL_KINDS, *_OTHER_FOLDERS)))
_NO_MODELS = {"configs", "custom_nodes"}

router = APIRouter(include_in_schema=False, dependencies=[Depends(READ)])


@router.get(twin("/object_info"))
async def every_node(
    request: Request,
    key: ReadProtocolKey,
    access: JobAccessDep,
    submission: SubmissionDep,
    *,
    endpoint: EndpointId = DEFAULT_ENDPOINT,
) -> Response:
    return await object_info(request, key, access, submission, endpoint=endpoint)


@router.get(twin("/object_info/{node}"))
async def one_node(
    node: str,
    key: ReadProtocolKey,
    access: JobAccessDep,
    submission: SubmissionDep,
    *,
    endpoint: EndpointId = DEFAULT_ENDPOINT,
) -> dict[str, Any]:
    """Return an empty object for an unknown node type."""
    async with access.list_turns.acquire(key.owner):
        found = await node_types(key, access, submission, endpoint)
        nodes = await in_thread(found.build)
    return {node: nodes[node]} if node in nodes else {}


@router.get(twin("/models"))
async def model_folders() -> list[str]:
    return list(FOLDERS)


@router.get(twin("/models/{folder}"))
async def models(folder: str, access: JobAccessDep) -> list[str]:
    return await _names(access, folder)


@router.get(twin("/experiment/models"))
async def described_folders() -> list[dict[str, Any]]:
    return [{"name": name, "folders": []} for name in FOLDERS if name not in _NO_MODELS]


@router.get(twin("/experiment/models/{folder}"))
async def described_models(folder: str, access: JobAccessDep) -> list[dict[str, Any]]:
    return [{"name": name, "pathIndex": 0} for name in await _names(access, folder)]


@router.get(twin("/embeddings"))
async def embeddings(access: JobAccessDep) -> list[str]:
    """List the embeddings without file suffixes, because prompts name them without suffixes."""
    names = await _names(access, "embeddings")
    return [str(PurePosixPath(name).with_suffix("")) for name in names]


@router.post(twin("/free"))
async def free(request: Request, key: ReadProtocolKey, access: JobAccessDep) -> Response:
    """Do nothing, because each engine removes models from memory when it needs the memory."""
    await members(access.bodies, request, key.owner)
    return Response()


@router.get(twin("/features"))
async def features(access: JobAccessDep) -> dict[str, Any]:
    return server_features(access)


@router.get(twin("/system_stats"))
async def system_stats() -> dict[str, Any]:
    """Return empty values, because jobs run on workers. `GET /v1/endpoints` describes workers."""
    return {
        "system": {
            "os": sys.platform,
            "comfyui_version": VERSION,
            "python_version": sys.version.partition(" ")[0],
            "pytorch_version": "",
            "embedded_python": False,
            "argv": [],
            "ram_total": 0,
            "ram_free": 0,
        },
        "devices": [
            {
                "name": "Darkroom",
                "type": "workers",
                "index": 0,
                "vram_total": 0,
                "vram_free": 0,
                "torch_vram_total": 0,
                "torch_vram_free": 0,
            }
        ],
    }


def server_features(access: JobAccess) -> dict[str, Any]:
    return {
        "supports_preview_metadata": True,
        "max_upload_size": access.bodies.max_upload_bytes,
    }


async def _names(access: JobAccess, folder: str) -> list[str]:
    """List the models in a folder, which may be absent. Raises ApiError 404, ModelsUnavailable."""
    if folder not in FOLDERS:
        raise not_found("There is no such folder of models.")
    return list(await asyncio.to_thread(access.catalogue.models.names, folder))
