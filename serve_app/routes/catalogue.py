"""Routes of what a job may use: models, samplers, schedulers, node types."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from engine.families.family import Family
from engine.families.recognition import family_of
from engine.families.table import TRAITS
from engine.graph.models_folder import (
    CHECKPOINTS,
    DIFFUSION_MODELS,
    EMBEDDINGS,
    HYPERNETWORKS,
    LORAS,
    TEXT_ENCODERS,
    VAES,
    ModelsFolder,
)
from engine.graph.names import AUTOMATIC, SAMPLERS, SCHEDULERS
from engine.webui.parameters import DiffusionParameters
from engine.webui.sampler_names import NEW_SAMPLERS, NEW_SCHEDULERS, follows_timesteps
from serve_app.adapters.openai.models import listed_models
from serve_app.auth import READ, ReadKey
from serve_app.openapi.error_responses import documented
from serve_app.replica import ReplicaDep

KINDS = (
    CHECKPOINTS,
    DIFFUSION_MODELS,
    TEXT_ENCODERS,
    LORAS,
    VAES,
    "controlnet",
    EMBEDDINGS,
    "upscale_models",
    HYPERNETWORKS,
)

_LISTED_UPLOADS = 1000

router = APIRouter(
    prefix="/v1",
    tags=["catalogue"],
    dependencies=[READ],
    responses=documented(400, 401, 403, 500, 503),
)


class ModelDefaults(BaseModel):
    """What a diffusion request takes that names the checkpoint and says nothing else."""

    width: int
    height: int
    steps: int | None = Field(description="null: what is usual for its `compatibility`")
    cfg_scale: float
    sampler_name: str
    scheduler: str

    @classmethod
    def of(cls, family: Family) -> ModelDefaults:
        """Those of a family."""
        traits, usual = TRAITS[family], DiffusionParameters.model_fields
        own = {name: each for name, each in asdict(traits.defaults).items() if each is not None}
        rest = {name: usual[name].default for name in ("cfg_scale", "sampler_name", "scheduler")}
        sides = {"width": traits.side, "height": traits.side}
        return cls(**{"steps": None, **rest, **sides, **own})


class ModelItem(BaseModel):
    kind: str = Field(description="Folder that it lies in: checkpoints, loras, ...")
    name: str = Field(description="The name to ask for it by")
    family: Family | None = Field(
        description="Of a checkpoint, diffusion model or LoRA whose header tells it, or of a "
        "diffusers folder whose pipeline does"
    )
    defaults: ModelDefaults | None = Field(description="Of a checkpoint whose family is known")


class ModelObject(BaseModel):
    id: str = Field(description="An endpoint's id, or a checkpoint's name")
    object: Literal["model"]
    created: int = Field(description="0: not known")
    owned_by: str


class ModelList(BaseModel):
    models: list[ModelItem]
    object: Literal["list"] = "list"
    data: list[ModelObject] = Field(
        description="What `model` of a request of OpenAI's images API may name, as its clients "
        "read it"
    )


class SamplerItem(BaseModel):
    name: str = Field(description="As in a workflow")
    label: str = Field(description="As in the diffusion flavour, which takes every spelling")
    aliases: list[str]
    automatic: str = Field(description=f"Scheduler that {AUTOMATIC} stands for")


class SamplerList(BaseModel):
    samplers: list[SamplerItem]


class SchedulerItem(BaseModel):
    name: str
    label: str
    aliases: list[str]


class SchedulerList(BaseModel):
    schedulers: list[SchedulerItem]


@router.get("/models")
async def list_models(key: ReadKey, replica: ReplicaDep) -> ModelList:
    """The models that are there now."""
    folder = replica.services.catalogue.models

    def read() -> list[ModelItem]:
        return [_item(folder, kind, name) for kind in KINDS for name in folder.names(kind)]

    data = [ModelObject(**each) for each in await listed_models(replica, key)]
    return ModelList(models=await asyncio.to_thread(read), data=data)


def _item(folder: ModelsFolder, kind: str, name: str) -> ModelItem:
    family = family_of(folder, kind, name)
    defaults = ModelDefaults.of(family) if family and kind == CHECKPOINTS else None
    return ModelItem(kind=kind, name=name, family=family, defaults=defaults)


@router.get("/samplers")
async def list_samplers() -> SamplerList:
    """The samplers; those that workflows do not know come last."""
    return SamplerList(
        samplers=[
            SamplerItem(
                name=row.name,
                label=row.label,
                aliases=list(row.aliases),
                automatic=AUTOMATIC if follows_timesteps(row) else row.automatic,
            )
            for row in (*SAMPLERS, *NEW_SAMPLERS)
        ]
    )


@router.get("/schedulers")
async def list_schedulers() -> SchedulerList:
    """The schedulers; the diffusion flavour knows `Automatic` as well."""
    return SchedulerList(
        schedulers=[
            SchedulerItem(name=row.name, label=row.label, aliases=list(row.aliases))
            for row in (*SCHEDULERS, *NEW_SCHEDULERS)
        ]
    )


@router.get("/object_info")
async def object_info(key: ReadKey, replica: ReplicaDep) -> dict[str, Any]:
    """Every node type, in the shape of ComfyUI's `GET /object_info`, with the caller's uploads."""
    services = replica.services
    newest = await services.uploads.page(key.owner, limit=_LISTED_UPLOADS)
    names = [upload.name for upload in newest]
    return await asyncio.to_thread(services.catalogue.object_info, names)
