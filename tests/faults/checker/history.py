"""The history of one run: the observations of callers and receivers, and the stored data.

It is plain data. A run writes it to a file, which the checks of `invariants.py` read.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from events.cloud_events import decode
from events.delivery import Delivery, fold_delivery
from events.job import Job, fold
from events.types import Event, Submitted


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a caller. `status` is None without a complete answer."""

    at: float
    status: int | None
    error: str | None = None
    """`error.type`; None if the body is not the service's own."""
    job_id: str | None = None


@dataclass(slots=True)
class Submission:
    """Requests with the same body, and so with the same marker in their prompt."""

    marker: str
    owner: str
    idempotency_key: str | None = None
    is_guilty: bool = False
    """Whether the job kills its engine."""
    answers: list[Answer] = field(default_factory=list)

    @property
    def job_ids(self) -> set[str]:
        """The ids in answers of 202."""
        return {each.job_id for each in self.answers if each.status == 202 and each.job_id}


@dataclass(frozen=True, slots=True)
class Call:
    """One request to a receiver."""

    at: float
    job_id: str
    webhook_id: str
    is_signed: bool
    answered: int | None
    """None: the connection was closed without an answer."""


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str
    began: float
    ended: float | None
    """None: it ended at once."""
    hit: bool = True
    """False if there was nothing to harm."""


Stored = tuple[int, str]
"""The sequence in the stream, and the payload."""


@dataclass(slots=True)
class History:
    submissions: dict[str, Submission] = field(default_factory=dict)
    """The submissions by marker."""
    calls: list[Call] = field(default_factory=list)
    forbidden_dials: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    """Ids of jobs that a caller asked to cancel or to erase, whatever the answer was."""
    erased: list[str] = field(default_factory=list)
    """Ids of jobs that the service confirmed as erased."""
    not_found: list[str] = field(default_factory=list)
    """Ids of jobs that were unknown after their 202 without having been erased."""
    results: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    """The status code of `GET result` and the status in it after the end, by id."""
    jobs: dict[str, list[Stored]] = field(default_factory=dict)
    deliveries: dict[str, list[Stored]] = field(default_factory=dict)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The jobs in the read model by id, see `job_as_json`."""
    leftovers: list[str] = field(default_factory=list)
    """Descriptions of things that should be gone."""
    disagreements: list[str] = field(default_factory=list)
    """The disagreements that `darkroom verify` reports."""

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), ensure_ascii=False))

    @classmethod
    def load(cls, path: Path) -> History:
        return TypeAdapter(cls).validate_json(path.read_bytes())


class Folded:
    """A history with the events of its jobs decoded and folded, once for all checks."""

    def __init__(self, history: History) -> None:
        self.history = history

    @cached_property
    def events(self) -> dict[str, list[Event]]:
        """The events of each job, in the order of the log."""
        return {job_id: _decoded(stored) for job_id, stored in self.history.jobs.items()}

    @cached_property
    def jobs(self) -> dict[str, Job]:
        folded = {job_id: fold(events) for job_id, events in self.events.items()}
        return {job_id: job for job_id, job in folded.items() if job is not None}

    @cached_property
    def delivery_events(self) -> dict[str, list[Event]]:
        return {job_id: _decoded(stored) for job_id, stored in self.history.deliveries.items()}

    def delivery(self, job_id: str) -> Delivery:
        return fold_delivery(self.delivery_events.get(job_id, []))

    @cached_property
    def by_marker(self) -> dict[str, list[str]]:
        """The ids of the jobs that were stored for each marker."""
        found: dict[str, list[str]] = defaultdict(list)
        for job_id, events in self.events.items():
            data = events[0].data if events else None
            if isinstance(data, Submitted):
                text = json.dumps(data.request, ensure_ascii=False)
                for marker in _markers_in(text, self.history.submissions):
                    found[marker].append(job_id)
        return dict(found)

    @cached_property
    def submission_of(self) -> dict[str, Submission]:
        """The submissions by job id, as far as callers or the jobs' own requests identify them."""
        by_answer = {
            job_id: each for each in self.history.submissions.values() for job_id in each.job_ids
        }
        by_request = {
            job_id: self.history.submissions[marker]
            for marker, ids in self.by_marker.items()
            for job_id in ids
        }
        return by_answer | by_request


MARK = "mark-"


def marker_of(number: int) -> str:
    """Return a word that only the prompt of this submission contains."""
    return f"{MARK}{number:06d}"


def _markers_in(text: str, submissions: Mapping[str, Submission]) -> set[str]:
    length = len(marker_of(0))
    starts = (at for at in range(len(text)) if text.startswith(MARK, at))
    return {text[at : at + length] for at in starts} & submissions.keys()


def _decoded(stored: Iterable[Stored]) -> list[Event]:
    return [decode(payload.encode(), position=position) for position, payload in sorted(stored)]


_JOB = TypeAdapter(Job)


def job_as_json(job: Job) -> dict[str, Any]:
    """Return the folded state of a job, with the type of the end, which JSON does not show."""
    end = None if job.end is None else job.end.type_name
    return {**_JOB.dump_python(job, mode="json"), "end_type": end}


def from_record(entries: Iterable[Mapping[str, Any]]) -> History:
    """Build the history from the records of callers, receivers and the injector."""
    history = History()
    for entry in entries:
        _add(history, entry)
    return history


def _add(history: History, entry: Mapping[str, Any]) -> None:
    match entry["what"]:
        case "submit":
            submission = Submission(**_members(entry, Submission, but="answers"))
            history.submissions.setdefault(submission.marker, submission)
        case "answer":
            answer = Answer(**_members(entry, Answer))
            history.submissions[entry["marker"]].answers.append(answer)
        case "call":
            history.calls.append(Call(**_members(entry, Call)))
        case "forbidden_dial":
            history.forbidden_dials.append(entry["address"])
        case "cancel" | "erase":
            history.cancelled.append(entry["job_id"])
            if entry["what"] == "erase" and entry["status"] in {200, 202}:
                history.erased.append(entry["job_id"])
        case "fault":
            history.faults.append(Fault(**_members(entry, Fault)))
        case "not_found":
            history.not_found.append(entry["job_id"])
        case "result":
            history.results[entry["job_id"]] = entry["code"], entry["status"]


def _members(entry: Mapping[str, Any], kind: type[Any], *, but: str = "") -> dict[str, Any]:
    """Return the members of an entry that `kind` also has."""
    return {field.name: entry[field.name] for field in fields(kind) if field.name != but}
