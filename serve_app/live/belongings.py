"""Whose job an event is about. Most events do not say it; the job's first one does."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable

from events.job import Job
from events.types import Erased, Event, Submitted
from serve_app.live.recent import Belonging

FindJob = Callable[[str], Awaitable[Job | None]]
"""A job by its id. Raises what `job_state.current_job` raises."""


class Belongings:
    """Of the jobs that were heard of last. Of others the job itself is asked for."""

    def __init__(self, find_job: FindJob, *, most: int) -> None:
        self._find_job = find_job
        self._most = most
        self._known: OrderedDict[str, Belonging] = OrderedDict()

    def known(self, job_id: str) -> Belonging | None:
        return self._known.get(job_id)

    async def of(self, event: Event) -> Belonging | None:
        """None where there is no such job any more. Raises what `FindJob` raises."""
        match event.data:
            case Submitted() | Erased() as data:
                return self._note(event.job_id, Belonging(data.owner, data.endpoint))
            case _:
                return await self.look_up(event.job_id)

    async def look_up(self, job_id: str) -> Belonging | None:
        """Raises what `FindJob` raises."""
        if (known := self._known.get(job_id)) is not None:
            return known
        job = await self._find_job(job_id)
        if job is None:
            return None
        return self._note(job_id, Belonging(job.submitted.owner, job.submitted.endpoint))

    def _note(self, job_id: str, belonging: Belonging) -> Belonging:
        self._known[job_id] = belonging
        self._known.move_to_end(job_id)
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return belonging
