"""Callers who submit jobs continuously and record each answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.faults.checker.history import marker_of
from tests.faults.checker.record import Record
from tests.faults.parts.receivers import GOOD, Receivers
from tests.support.polling import eventually
from tests.support.probe import Probe
from tests.support.service import diffusion

OWNER = "alice"
_PERIOD_S = 3.0
_RETRY_PAUSE_S = 0.2
_TIMEOUT_S = 30.0


class Callers:
    """Each submission is repeated under its key until its answer is certain."""

    def __init__(self, url: str, *, key: str, receivers: Receivers, record: Record) -> None:
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key}"}, timeout=_TIMEOUT_S, trust_env=False
        )
        self._url = url
        self._receivers = receivers
        self.record = record
        self._count = 0
        self._open: list[str] = []
        """Ids of jobs whose result is not recorded yet."""
        self.probe = Probe(_port_of(url), "/health/ready")

    def move(self, url: str) -> None:
        """Call another address from now on."""
        self._url, self.probe.port = url, _port_of(url)

    async def submit(self, **changes: Any) -> str:
        """Submit a job until it is accepted and return its id. `changes`: to the request."""
        self._count += 1
        marker = marker_of(self._count)
        members = {"owner": OWNER, "idempotency_key": f"key-{marker}", "is_guilty": False}
        self.record.add("submit", marker=marker, **members)
        body = diffusion(prompt=marker, **changes)
        return await eventually(lambda: self._send(marker, body))

    async def _send(self, marker: str, body: dict[str, Any]) -> str | None:
        answer: httpx.Response | None = None
        job_id = None
        with suppress(httpx.TransportError):
            answer = await self._client.post(
                f"{self._url}/diffusion/v1/generate",
                json=body,
                params={"callback_url": self._receivers.url(OWNER, GOOD)},
                headers={"Idempotency-Key": f"key-{marker}"},
            )
        if answer is not None and answer.status_code == httpx.codes.ACCEPTED:
            job_id = str(answer.json()["request_id"])
            self._open.append(job_id)
        status = None if answer is None else answer.status_code
        error = _error_of(answer)
        self.record.add("answer", marker=marker, status=status, error=error, job_id=job_id)
        if job_id is None:
            await asyncio.sleep(_RETRY_PAUSE_S)
        return job_id

    async def ended(self, job_id: str) -> int:
        """Wait for the end of a job and return the status in its result."""

        async def status() -> int | None:
            with suppress(httpx.TransportError):
                query = {"request_id": job_id}
                answer = await self._client.get(f"{self._url}/diffusion/v1/result", params=query)
                if answer.is_success:
                    return int(answer.json()["status"] or 0)
            return None

        return await eventually(status)

    async def picture(self, **changes: Any) -> int:
        """Submit a job, wait for its end, and return its status."""
        return await self.ended(await self.submit(**changes))

    @asynccontextmanager
    async def calling(self) -> AsyncGenerator[None]:
        """Submit small jobs while the context lasts; at the end record each one's result."""
        submitting = asyncio.create_task(self._submit_all())
        try:
            with self.probe.asking():
                yield
                assert not submitting.done(), submitting
        finally:
            submitting.cancel()
            await asyncio.gather(submitting, return_exceptions=True)
        while self._open:
            status = await self.ended(self._open[0])
            self.record.add("result", job_id=self._open.pop(0), code=200, status=status)

    async def close(self) -> None:
        await self._client.aclose()

    async def _submit_all(self) -> None:
        while True:
            await self.submit()
            await asyncio.sleep(_PERIOD_S)


def _port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port


def _error_of(answer: httpx.Response | None) -> str | None:
    """Return the type of the service's error; None for another answer."""
    if answer is None or answer.is_success:
        return None
    with suppress(ValueError, KeyError, TypeError):
        return str(answer.json()["error"]["type"])
    return None
