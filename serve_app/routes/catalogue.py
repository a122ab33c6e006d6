"""Routes that list models, samplers, schedulers and node types."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from comfyui.object_info import ObjectInfo
from engine.interface import Catalogue, Family
from events.store.records import DEFAULT_ENDPOINT, ApiKey
from serve_app.answers import json_answer
from serve_app.auth import READ, ReadKey
from serve_app.error_responses import not_found
from serve_app.openapi.document import documented
from serve_app.protocols.openai.models import listed_models
from serve_app.replica import JobAccess, JobAccessDep, Submission, SubmissionDep
from serve_app.routes.generate import EndpointId

_LISTED_UPLOADS = 1000

router = APIRouter(
    prefix="/v1",
    tags=["catalogue"],
    dependencies=[READ],
    responses=documented(400, 401, 403, 500, 503),
)


class ModelDefaults(BaseModel):
    """The values of a diffusion request that names only the checkpoint."""

    model_config = ConfigDict(from_attributes=True)

    width: int
    height: int
    steps: int | None = Field(description="null: the default of the `compatibility`")
    cfg_scale: float
    sampler_name: str
    scheduler: str


class ModelItem(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    kind: str = Field(description="The folder of the file: checkpoints, loras, ...")
    name: str = Field(description="The name of the model in a request")
    family: Family | None = Field(
        description="The family, if the header of the checkpoint, diffusion model or LoRA shows "
        "it, or the pipeline of the diffusers folder"
    )
    defaults: ModelDefaults | None = Field(
        description="The defaults of a checkpoint with a known family"
    )


class ModelObject(BaseModel):
    id: str = Field(description="An endpoint's id, or a checkpoint's name")
    object: Literal["model"]
    created: int = Field(description="Always 0, because the time is not known")
    owned_by: str


class ModelList(BaseModel):
    models: list[ModelItem]
    object: Literal["list"] = "list"
    data: list[ModelObject] = Field(
        description="The values of `model` in OpenAI's images API, in the format of that API"
    )


class SamplerItem(BaseModel):
    name: str = Field(description="The name in a workflow")
    label: str = Field(
        description="The name in the diffusion flavour. Other spellings are accepted too"
    )
    aliases: list[str]
    automatic: str = Field(description="The scheduler that `Automatic` selects")


class SamplerList(BaseModel):
    samplers: list[SamplerItem]


class SchedulerItem(BaseModel):
    name: str
    label: str
    aliases: list[str]


class SchedulerList(BaseModel):
    schedulers: list[SchedulerItem]


@router.get("/models", response_model=ModelList)
async def list_models(key: ReadKey, access: JobAccessDep, submission: SubmissionDep) -> Response:
    """List the available models."""
    async with access.list_turns.acquire(key.owner):
        objects = await listed_models(submission, key)
        return await json_answer(lambda: _models(submission.catalogue, objects))


def _models(catalogue: Catalogue, objects: list[dict[str, Any]]) -> ModelList:
    return ModelList(
        models=[ModelItem.model_validate(each) for each in catalogue.listed_models()],
        data=[ModelObject(**each) for each in objects],
    )


@router.get("/samplers")
async def list_samplers() -> SamplerList:
    """List the samplers. Samplers that workflows cannot use come last."""
    return SamplerList(
        samplers=[
            SamplerItem(
                name=row.name,
                label=row.label,
                aliases=list(row.aliases),
                automatic=row.automatic,
            )
            for row in Catalogue.SAMPLERS
        ]
    )


@router.get("/schedulers")
async def list_schedulers() -> SchedulerList:
    """List the schedulers. The diffusion flavour also accepts `Automatic`."""
    return SchedulerList(
        schedulers=[
            SchedulerItem(name=row.name, label=row.label, aliases=list(row.aliases))
            for row in Catalogue.SCHEDULERS
        ]
    )


@router.get("/object_info", response_model=dict[str, Any], responses=documented(404))
async def object_info(
    request: Request,
    key: ReadKey,
    access: JobAccessDep,
    submission: SubmissionDep,
    *,
    endpoint: EndpointId = DEFAULT_ENDPOINT,
) -> Response:
    """List the node types of an endpoint and the caller's uploads, in the format of ComfyUI's
    `/object_info`. An endpoint with a fallback also has the node types of the fallback. Those of
    ComfyUI are as its server has last declared them.
    """
    async with access.list_turns.acquire(key.owner):
        nodes = await node_types(key, access, submission, endpoint)
        models = await asyncio.to_thread(access.catalogue.choosable_models) if nodes.own else ()
        page = await access.node_types.get((nodes, models), nodes.build)
    return page.answer(request)


@dataclass(frozen=True, slots=True)
class NodeTypes:
    """The node types of an endpoint for one caller."""

    own: Catalogue | None
    declared: ObjectInfo | None
    """The node types that a ComfyUI server has declared."""
    files: tuple[str, ...]
    """The names of the caller's uploads."""
    images: tuple[str, ...]

    def build(self) -> dict[str, Any]:
        """Return the declaration of each node type by its name. Raises ModelsUnavailable."""
        if self.own is None:
            return {} if self.declared is None else self.declared.with_files(self.files)
        own = self.own.object_info(self.images)
        return own if self.declared is None else self.declared.added_to(own, self.files)


async def node_types(
    key: ApiKey, access: JobAccess, submission: Submission, endpoint_id: str
) -> NodeTypes:
    """Return the node types of an endpoint.

    Raises ApiError 404 if the endpoint does not exist, or if its server has declared nothing yet.
    """
    endpoints = submission.acceptance.endpoints
    endpoint = await endpoints.visible(endpoint_id, key)
    if endpoint is None and endpoint_id != DEFAULT_ENDPOINT:
        raise not_found("There is no such endpoint.")
    newest = await access.uploads.page(key.owner, limit=_LISTED_UPLOADS)
    files = tuple(upload.name for upload in newest)
    images = tuple(upload.name for upload in newest if upload.width)
    if endpoint is not None and endpoint.engine == "comfyui":
        declared = await endpoints.object_info(endpoint)
        if declared is None:
            raise not_found(
                "The node types of this endpoint are not known yet, because none of its servers "
                "has been ready."
            )
        return NodeTypes(None, declared, files, images)
    fallback = None
    if endpoint is not None and endpoint.fallback is not None:
        fallback = await endpoints.visible(endpoint.fallback, key)
    declared = None if fallback is None else await endpoints.object_info(fallback)
    return NodeTypes(access.catalogue, declared, files, images)
