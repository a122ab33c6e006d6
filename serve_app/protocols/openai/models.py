"""Resolves `model`: the name of an endpoint, of a checkpoint of the default endpoint, or of a named
workflow.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from engine.interface import Catalogue
from events.store.records import DEFAULT_ENDPOINT, ApiKey, Endpoint
from serve_app.error_responses import ApiError
from serve_app.refusals import EndpointForbidden, EndpointNotFound, WorkflowNotFound
from serve_app.replica import Submission
from serve_app.workflows.named import FoundWorkflow

_OPENAI_PREFIXES = ("dall-e-", "gpt-image-", "chatgpt-image-")
"""Prefixes of OpenAI's model names, the only ones that some clients send. They select the default
endpoint and its checkpoint.
"""


@dataclass(frozen=True, slots=True)
class Target:
    endpoint: Endpoint
    checkpoint: str | None
    """The checkpoint; None means the default checkpoint of the endpoint."""


async def target_of(submission: Submission, key: ApiKey, model: str) -> Target:
    """Find the endpoint and checkpoint that `model` names.

    Raises ApiError 404, EndpointForbidden, ModelsUnavailable.
    """
    endpoints = submission.acceptance.endpoints
    if model:
        try:
            return Target(await endpoints.named(model, key), None)
        except (EndpointNotFound, EndpointForbidden):
            pass  # `model` may be a checkpoint
    checkpoint = (
        await asyncio.to_thread(_checkpoint, submission.catalogue, model) if model else None
    )
    if checkpoint is None and model and not model.startswith(_OPENAI_PREFIXES):
        raise model_not_found(model)
    return Target(await endpoints.named(DEFAULT_ENDPOINT, key), checkpoint)


async def workflow_of(submission: Submission, key: ApiKey, model: str) -> FoundWorkflow | None:
    """Return the named workflow that `model` names; None if it names something else or nothing."""
    try:
        await target_of(submission, key, model)
    except ApiError:
        with suppress(WorkflowNotFound):
            return await submission.workflows.find(key, model)
    return None


async def listed_models(submission: Submission, key: ApiKey) -> list[dict[str, Any]]:
    """List the endpoints that the key may use, the checkpoints and the named workflows, in OpenAI's
    format.
    """
    endpoints = await submission.acceptance.endpoints.usable(key)
    checkpoints = await asyncio.to_thread(submission.catalogue.checkpoints)
    workflows = await submission.workflows.all(key)
    return [model_object(id) for id in dict.fromkeys((*endpoints, *checkpoints, *workflows))]


async def one_model(submission: Submission, key: ApiKey, model: str) -> dict[str, Any]:
    """Return a listed model. Raises ApiError 404."""
    for each in await listed_models(submission, key):
        if each["id"] == model:
            return each
    raise model_not_found(model)


def model_object(id: str) -> dict[str, Any]:
    """Build the object of a model. `created` is 0, because the time is not known."""
    return {"id": id, "object": "model", "created": 0, "owned_by": "darkroom"}


def model_not_found(model: str) -> ApiError:
    message = f"There is no model {model[:100]!r}; see GET /v1/models."
    return ApiError(404, "model_not_found", message, extra_info={"parameter": "model"})


def _checkpoint(catalogue: Catalogue, model: str) -> str | None:
    """Return the file name of a checkpoint. `model` may omit the suffix."""
    names = catalogue.checkpoints()
    if model in names:
        return model
    return next((name for name in names if name.rpartition(".")[0] == model), None)
