"""What `model` names: an endpoint, or a checkpoint of the default endpoint."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from engine.graph.models_folder import CHECKPOINTS
from events.store.records import ApiKey, Endpoint
from serve_app.access.permissions import may_see
from serve_app.api_error import ApiError
from serve_app.refusals import EndpointForbidden, EndpointNotFound
from serve_app.replica import Replica

_DEFAULT_ENDPOINT = "default"
_THEIRS = ("dall-e-", "gpt-image-", "chatgpt-image-")
"""Programs that cannot be told a model name one of OpenAI's, which stands for the default."""


@dataclass(frozen=True, slots=True)
class Target:
    endpoint: Endpoint
    checkpoint: str | None
    """None: the endpoint's own."""


async def target_of(replica: Replica, key: ApiKey, model: str) -> Target:
    """Raises ApiError 404, EndpointForbidden, EndpointDraining, ModelsUnavailable."""
    endpoints = replica.acceptance.endpoints
    if model:
        try:
            return Target(await endpoints.for_job(model, key), None)
        except (EndpointNotFound, EndpointForbidden):
            pass  # it may be a checkpoint
    checkpoint = await asyncio.to_thread(_checkpoint, replica, model) if model else None
    if checkpoint is None and model and not model.startswith(_THEIRS):
        raise model_not_found(model)
    return Target(await endpoints.for_job(_DEFAULT_ENDPOINT, key), checkpoint)


async def listed_models(replica: Replica, key: ApiKey) -> list[dict[str, Any]]:
    """The endpoints that the key may use, then the checkpoints, as OpenAI's clients read them."""
    endpoints = [
        each.id
        for each in await replica.services.endpoints.all()
        if may_see(key, each) and key.limits.allow_endpoint(each.id) and each.ends_at is None
    ]
    folder = replica.services.catalogue.models
    checkpoints = await asyncio.to_thread(folder.names, CHECKPOINTS)
    return [model_object(id) for id in dict.fromkeys((*endpoints, *checkpoints))]


async def one_model(replica: Replica, key: ApiKey, model: str) -> dict[str, Any]:
    """Raises ApiError 404."""
    for each in await listed_models(replica, key):
        if each["id"] == model:
            return each
    raise model_not_found(model)


def model_object(id: str) -> dict[str, Any]:
    """When a model was made is not known."""
    return {"id": id, "object": "model", "created": 0, "owned_by": "darkroom"}


def model_not_found(model: str) -> ApiError:
    message = f"There is no model {model[:100]!r}; GET /v1/models lists what there is."
    return ApiError(404, "model_not_found", message, extra_info={"parameter": "model"})


def _checkpoint(replica: Replica, model: str) -> str | None:
    """Its file's name, which may be given without the suffix."""
    names = replica.services.catalogue.models.names(CHECKPOINTS)
    if model in names:
        return model
    return next((name for name in names if name.rpartition(".")[0] == model), None)
