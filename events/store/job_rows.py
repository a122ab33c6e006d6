"""A job as a row of the read model and back, the rows of its images, and rows in their order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, get_args

import sqlalchemy as sa
from pydantic import TypeAdapter

from events.delivery import is_wanted
from events.job import Job
from events.result import status_of
from events.store.tables import JOBS, SUMMARY
from events.types import End, Event, Failed, ImageStored

ERASED = -1
"""Status of a row that says only that the job was erased."""


def job_row(job: Job) -> dict[str, Any]:
    state, summary = _states(job)
    return {
        "id": job.id,
        "owner": job.submitted.owner,
        "flavour": job.submitted.flavour.value,
        "endpoint": job.submitted.endpoint,
        "status": ERASED if job.erased else status_of(job.end).value,
        "created_at": job.submitted_at,
        "ended_at": job.ended_at,
        "version": job.version,
        "position": job.position,
        "state": state,
        "summary": summary,
        "key_id": job.submitted.key_id,
        "dead_letter": job.end.dead_letter if isinstance(job.end, Failed) else None,
        "log_bytes": job.log_bytes,
        "result_bytes": job.result_bytes,
        "settled_at": None if is_wanted(job.submitted) else job.ended_at,
    }


def image_rows(events: Iterable[Event], jobs: Mapping[str, Job]) -> list[dict[str, Any]]:
    """Rows of the batch's images that their job accepted. The insert ignores a repeat."""
    return [
        {
            "job_id": event.job_id,
            "index": image.index,
            "storage_key": image.key,
            "size_bytes": image.size_bytes,
            "digest": image.digest,
            "position": event.position,
        }
        for event in events
        if isinstance(image := event.data, ImageStored)
        and (job := jobs.get(event.job_id)) is not None
        and job.image(image.index) == image
    ]


_JOB = TypeAdapter(Job)
_ENDS: dict[str, type[End]] = {end.type_name: end for end in get_args(End)}


def _states(job: Job) -> tuple[str, str]:
    """`Job` as JSON, and the same without its request, and of addresses their number alone.

    With the type of its end: `Failed` and `Cancelled` look alike in JSON.
    """
    end = None if job.end is None else job.end.type_name
    state = {"end": end, "job": _JOB.dump_python(job, mode="json")}
    whole = json.dumps(state)
    submitted = state["job"]["submitted"]
    submitted["request"] = {}
    if puts := submitted["image_puts"]:
        submitted["image_puts"] = [""] * len(puts)
    return whole, json.dumps(state)


def from_state(state: str) -> Job:
    stored = json.loads(state)
    job = _JOB.validate_python(stored["job"])
    if stored["end"] is None:
        return job
    return replace(job, end=_ENDS[stored["end"]].model_validate(stored["job"]["end"]))


def listing(wanted: Mapping[str, Any]) -> sa.Select[Any]:
    """Jobs that are not erased, newest first; a wanted value of None is any.

    Without their requests, of which a page may have a hundred MB.
    """
    query = sa.select(SUMMARY.label("state")).where(
        JOBS.c.status != ERASED,
        *(JOBS.c[name] == value for name, value in wanted.items() if value is not None),
    )
    return query.order_by(JOBS.c.created_at.desc(), JOBS.c.id.desc())


def is_behind(job_id: str, *, of_owner: str | None = None) -> sa.ColumnElement[bool]:
    """Whether a row comes after this job in a listing; never where it is another owner's."""
    seen = JOBS.alias("seen")
    last = sa.select(seen.c.created_at, seen.c.id).where(seen.c.id == job_id)
    if of_owner is not None:
        last = last.where(seen.c.owner == of_owner)
    return sa.tuple_(JOBS.c.created_at, JOBS.c.id) < last.scalar_subquery()
