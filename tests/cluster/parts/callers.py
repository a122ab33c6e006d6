"""Who calls the service all the while: to submit jobs, and to ask whether it is there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx

from tests.faults.checker.history import marker_of
from tests.faults.checker.record import Record
from tests.faults.parts.receivers import GOOD, Receivers
from tests.support.polling import eventually
from tests.support.service import diffusion

_OWNER = "alice"
_PERIOD_S = 1.5
_PROBE_PERIOD_S = 0.1
_TIMEOUT_S = 30.0


class Callers:
    """Each submission is repeated under its key until its answer is certain."""

    def __init__(self, url: str, *, key: str, receivers: Receivers, record: Record) -> None:
        self._client = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=_TIMEOUT_S,
            trust_env=False,
        )
        self._url = url
        self._receivers = receivers
        self._record = record
        self._count = 0
        self._silent_since: float | None = None
        self._silences: list[float] = []
        self._calling: list[asyncio.Task[None]] = []
        self.accepted: list[str] = []

    async def submit(self, **changes: Any) -> str:
        """The id of a job, once it is accepted. `changes`: to the request."""
        self._count += 1
        marker = marker_of(self._count)
        members = {"owner": _OWNER, "idempotency_key": f"key-{marker}", "is_guilty": False}
        self._record.add("submit", marker=marker, **members)
        body = diffusion(prompt=marker, **changes)
        return await eventually(lambda: self._send(marker, body))

    async def _send(self, marker: str, body: dict[str, Any]) -> str | None:
        answer: httpx.Response | None = None
        job_id = None
        with suppress(httpx.TransportError):
            answer = await self._client.post(
                "/diffusion/v1/generate",
                json=body,
                params={"callback_url": self._receivers.url(_OWNER, GOOD)},
                headers={"Idempotency-Key": f"key-{marker}"},
            )
        if answer is not None and answer.status_code == httpx.codes.ACCEPTED:
            job_id = str(answer.json()["request_id"])
            self.accepted.append(job_id)
        status = None if answer is None else answer.status_code
        error = _error_of(answer)
        self._record.add("answer", marker=marker, status=status, error=error, job_id=job_id)
        if job_id is None:
            await asyncio.sleep(0.2)
        return job_id

    async def ended(self, job_id: str) -> int:
        """The status in its result, once it has ended."""

        async def status() -> int | None:
            with suppress(httpx.TransportError):
                query = {"request_id": job_id}
                answer = await self._client.get("/diffusion/v1/result", params=query)
                if answer.is_success:
                    return int(answer.json()["status"] or 0)
            return None

        return await eventually(status)

    async def picture(self, **changes: Any) -> int:
        """The status of a job that is submitted now, once it has ended."""
        return await self.ended(await self.submit(**changes))

    async def settle(self) -> None:
        """Note the result of each accepted job, once it has ended."""
        for job_id in dict.fromkeys(self.accepted):
            status = await self.ended(job_id)
            self._record.add("result", job_id=job_id, code=200, status=status)

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[None]:
        """Meanwhile small jobs are submitted, and the service is asked whether it is there."""
        self._calling = [asyncio.create_task(each()) for each in (self._submit_all, self._probe)]
        try:
            yield
        finally:
            await self.stop()
            await self._client.aclose()

    async def stop(self) -> None:
        """Raises what ended them before."""
        for task in self._calling:
            task.cancel()
        for outcome in await asyncio.gather(*self._calling, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    def silence(self) -> float:
        """The longest time without an answer since this was asked last, in seconds."""
        silences, self._silences = self._silences, []
        if self._silent_since is not None:
            silences.append(time.monotonic() - self._silent_since)
        return max(silences, default=0.0)

    async def _submit_all(self) -> None:
        while True:
            await self.submit()
            await asyncio.sleep(_PERIOD_S)

    async def _probe(self) -> None:
        """Each time by a connection of its own, as callers from outside have."""
        while True:
            asked_at, is_there = time.monotonic(), False
            with suppress(httpx.TransportError):
                async with httpx.AsyncClient(trust_env=False, timeout=3.0) as client:
                    is_there = (await client.get(f"{self._url}/health/ready")).is_success
            if not is_there and self._silent_since is None:
                self._silent_since = asked_at
            elif is_there and self._silent_since is not None:
                self._silences.append(time.monotonic() - self._silent_since)
                self._silent_since = None
            await asyncio.sleep(_PROBE_PERIOD_S)


def _error_of(answer: httpx.Response | None) -> str | None:
    """The type of the service's own error; None where it is none."""
    if answer is None or answer.is_success:
        return None
    with suppress(ValueError, KeyError, TypeError):
        return str(answer.json()["error"]["type"])
    return None
