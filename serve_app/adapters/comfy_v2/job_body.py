"""Jobs as the contract shows them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from events.job import Job
from events.result import failure_code
from events.types import Cancelled, Completed, Failed, ImageStored
from events.wire.progress import JobProgress
from serve_app.adapters.comfy_v2.content import output_id
from serve_app.adapters.comfy_v2.links import image_url_expires_at, job_expires_at, job_links
from serve_app.live.queue_places import QueuePlace
from serve_app.replica import Replica
from serve_app.services import Services
from storage.keys import PNG, SAFETENSORS, file_name

_OUTPUT_NODES = ("Save", "Preview")


def status_of(job: Job) -> str:
    match job.end:
        case Completed():
            return "succeeded"
        case Cancelled():
            return "canceled"
        case Failed():
            return "failed"
    if job.cancel_requested:
        return "canceling"
    return "running" if job.is_attempted else "queued"


async def known_body(replica: Replica, job: Job) -> dict[str, Any]:
    """With its place in the queue. `job` has its request."""
    return job_body(replica.services, job, await replica.queue_places.of(job))


def job_body(services: Services, job: Job, place: QueuePlace | None = None) -> dict[str, Any]:
    """`job` has its request; one that was just accepted has no place yet."""
    runs = job.end is None and job.started_at is not None
    progress = services.progress.get(job.id) if runs else None
    return {
        "id": job.id,
        "status": status_of(job),
        "created_at": job.submitted_at.isoformat(),
        "started_at": _time(job.started_at),
        "completed_at": _time(job.ended_at),
        "expires_at": job_expires_at(services, job).isoformat(),
        "queue_position": None if place is None else place.position,
        "progress": progress_body(job, progress),
        "outputs": [output(services, job, image) for image in job.images],
        "error": _error(job),
        "metrics": {
            "queue_ms": _ms(job.submitted_at, job.started_at),
            "execution_ms": _ms(job.started_at, job.ended_at),
        },
        "urls": job_links(services, job),
    }


def progress_body(job: Job, progress: JobProgress | None) -> dict[str, Any] | None:
    """Of the nodes only their number is known; how many are done follows from the steps."""
    total = len(workflow_of(job)) or 1
    if isinstance(job.end, Completed):
        return {"value": 1.0, "nodes_done": total, "nodes_total": total}
    if progress is None:
        return None
    told = f"{progress.class_type or 'step'} {progress.done}/{progress.total}"
    return {
        "value": progress.fraction,
        "nodes_done": min(int(progress.fraction * total), total - 1),
        "nodes_total": total,
        "current_node": progress.node,
        "current_node_class": progress.class_type,
        "step": progress.done,
        "steps": progress.total,
        "message": told,
    }


def output(services: Services, job: Job, image: ImageStored) -> dict[str, Any]:
    is_latent = image.media_type == SAFETENSORS
    return {
        "node_id": image.node or _output_node(job),
        "name": f"darkroom_{file_name(image.index, image.media_type)}",
        "type": "latent" if is_latent else "image",
        "content_type": image.media_type or PNG,
        "size_bytes": image.size_bytes,
        "id": output_id(job, image),
        "hash": None,
        "url": services.url_for(job.id, image),
        "url_expires_at": image_url_expires_at(services, job).isoformat(),
        "job_id": job.id,
    }


def workflow_of(job: Job) -> dict[str, Any]:
    """The graph that runs; empty for a job of the diffusion flavour, which has none of its own."""
    workflow = job.submitted.request.get("prompt")
    return workflow if isinstance(workflow, dict) else {}


def _output_node(job: Job) -> str:
    """Older versions did not record which node an image is of; mostly there is one."""
    nodes = workflow_of(job).items()
    saves = (id for id, node in nodes if str(node.get("class_type")).startswith(_OUTPUT_NODES))
    return next(saves, "")


def _error(job: Job) -> dict[str, Any] | None:
    """A job that was cancelled has none: its status says it."""
    if not isinstance(job.end, Failed):
        return None
    return {"code": failure_code(job.end), "message": job.end.message}


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _ms(start: datetime | None, end: datetime | None) -> int | None:
    return int((end - start).total_seconds() * 1000) if start and end else None
