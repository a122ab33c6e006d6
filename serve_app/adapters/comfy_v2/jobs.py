"""Routes of jobs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from engine.errors import GraphInvalid
from events.decisions import Cancel
from events.ids import is_job_id, new_id
from events.log import utc_now
from events.types import Flavour
from serve_app.acceptance.editor_file import is_of_editor
from serve_app.acceptance.generate_request import GenerateRequest
from serve_app.adapters.comfy_v2.errors import invalid_workflow
from serve_app.adapters.comfy_v2.job_body import job_body, known_body, status_of, workflow_of
from serve_app.adapters.comfy_v2.job_events import job_stream
from serve_app.adapters.comfy_v2.links import PREFIX
from serve_app.adapters.comfy_v2.references import name_uploads
from serve_app.adapters.credentials import CancelAdapterKey, GenerateAdapterKey, ReadAdapterKey
from serve_app.api_error import ApiError
from serve_app.job_end import end_job
from serve_app.job_state import owned_job
from serve_app.replica import ReplicaDep
from serve_app.routes.generate import EndpointId, traceparent_of

_MEMBERS = {"workflow", "extra_data"}
_LONGEST_KEY = 255
_OF_KEYS = "comfy-api-v2 "
"""Apart from the keys of our own routes, of which a repeat gets its job."""

router = APIRouter(prefix=f"{PREFIX}/jobs", include_in_schema=False)


@router.post("", status_code=201)
async def post_job(
    request: Request,
    key: GenerateAdapterKey,
    replica: ReplicaDep,
    *,
    endpoint: EndpointId = "default",
    idempotency_key: Annotated[str | None, Header(alias="Idempotency-Key")] = None,
) -> dict[str, Any]:
    """Submit a workflow. An idempotency key is good for one job: a repeat is refused."""
    began = utc_now()
    async with replica.bodies.json(request, key.owner) as (body, content):
        workflow = _workflow(content)
        await name_uploads(replica, key, workflow)
        try:
            job = await replica.acceptance.accept(
                GenerateRequest(
                    flavour=Flavour.WORKFLOW,
                    key=key,
                    endpoint=endpoint,
                    # No two requests are the same one, so that the key of one refuses the other.
                    body=body + new_id().encode(),
                    content={"prompt": workflow},
                    preview=True,
                    idempotency_key=_checked_key(idempotency_key),
                    traceparent=traceparent_of(request),
                )
            )
        except GraphInvalid as error:
            raise invalid_workflow(error) from error
    replica.note_accepted(job, began=began)
    return job_body(replica.services, job)


@router.get("")
async def list_jobs(
    request: Request,
    key: ReadAdapterKey,
    replica: ReplicaDep,
    *,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query()] = None,
) -> dict[str, Any]:
    """The caller's jobs, newest first. None has labels, so a filter by labels finds none."""
    if cursor is not None and not is_job_id(cursor):
        raise ApiError(400, "invalid_cursor", "The cursor is not one that was answered here.")
    if any(name.startswith("metadata[") for name in request.query_params):
        return {"jobs": []}
    services = replica.services
    found = await services.read_model.jobs(key.owner, limit=limit + 1, before=cursor)
    page = found[:limit]
    jobs = [
        {
            "id": job.id,
            "status": status_of(job),
            "create_time": job.submitted_at.isoformat(),
            "update_time": (job.ended_at or job.started_at or job.submitted_at).isoformat(),
            "metadata": {},
        }
        for job in page
    ]
    return {"jobs": jobs} | ({"next_cursor": page[-1].id} if len(found) > limit else {})


@router.get("/{id}")
async def get_job(id: str, key: ReadAdapterKey, replica: ReplicaDep) -> dict[str, Any]:
    return await known_body(replica, await owned_job(replica.services, id, key))


@router.get("/{id}/workflow")
async def get_job_workflow(id: str, key: ReadAdapterKey, replica: ReplicaDep) -> dict[str, Any]:
    """The graph that runs, with its seeds drawn and uploads by their names."""
    job = await owned_job(replica.services, id, key)
    return {"workflow": workflow_of(job), "format": "api"}


@router.get("/{id}/events")
async def get_job_events(
    request: Request, id: str, key: ReadAdapterKey, replica: ReplicaDep
) -> Response:
    job = await owned_job(replica.services, id, key)
    return job_stream(replica, request, key, job)


@router.post("/{id}/cancel")
async def cancel_job(id: str, key: CancelAdapterKey, replica: ReplicaDep) -> dict[str, Any]:
    """Repeating it changes nothing."""
    job = await owned_job(replica.services, id, key)
    return await known_body(replica, await end_job(replica.services, Cancel(), job))


def _workflow(content: Any) -> dict[str, Any]:
    """Raises ApiError 422."""
    workflow = content.get("workflow") if isinstance(content, dict) else None
    if not isinstance(workflow, dict):
        raise ApiError(422, "invalid_workflow", "The body has no object `workflow`.")
    if is_of_editor(workflow):
        message = "This is the file of ComfyUI's editor: export the workflow in its API format."
        raise ApiError(422, "workflow_format_ui", message)
    if "metadata" in content:
        raise ApiError(422, "metadata_not_supported", "Jobs have no labels here.")
    if unknown := content.keys() - _MEMBERS:
        raise ApiError(422, "invalid_request", f"{min(unknown)[:100]!r} is not supported.")
    return workflow


def _checked_key(key: str | None) -> str | None:
    """Raises ApiError 422."""
    if key is None:
        return None
    if not (key.isascii() and key.isprintable() and 0 < len(key) <= _LONGEST_KEY):
        message = f"An Idempotency-Key has 1 to {_LONGEST_KEY} printable ASCII characters."
        raise ApiError(422, "invalid_request", message)
    return _OF_KEYS + key
