"""Steady load: callers of several owners, who record each answer."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.faults.checker.history import marker_of
from tests.faults.checker.record import Record
from tests.faults.parts.inside.sitecustomize import POISON
from tests.faults.parts.parts import Parts
from tests.faults.parts.receivers import BEHAVIOURS, GOOD, Receivers
from tests.support.polling import eventually
from tests.support.service import diffusion, workflow

_MOST_OPEN = 16
"""The number of jobs that are followed at once; no more are submitted."""
_REQUEST_TIMEOUT_S = 25.0
_MOST_REPEATS = 40
_KNOWN_WAIT_S = 10


@dataclass(frozen=True, slots=True)
class Request:
    """One body with its query, which may be sent more than once."""

    marker: str
    owner: str
    flavour: str
    body: dict[str, Any]
    query: Mapping[str, str] = field(default_factory=dict)
    idempotency_key: str | None = None
    is_guilty: bool = False


@asynccontextmanager
async def load_on(
    parts: Parts,
    url: str,
    record: Record,
    *,
    seed: int,
    owners: Iterable[str] = ("alice", "bob", "carol"),
    **options: Any,
) -> AsyncGenerator[Load]:
    """Create a key for each owner, serve their callbacks, and prepare the load."""
    receivers, keys = Receivers(record, seed=seed), {}
    async with receivers.serving():
        for owner in owners:
            made = await asyncio.to_thread(parts.darkroom, "keys", "create", owner)
            keys[owner], secret = made.split()
            receivers.accept_secret(owner, secret)
        load = Load(url, keys=keys, receivers=receivers, record=record, seed=seed, **options)
        try:
            yield load
        finally:
            await load.close()


class Load:
    def __init__(
        self,
        url: str,
        *,
        keys: Mapping[str, str],
        receivers: Receivers,
        record: Record,
        seed: int,
        guilty_every: int | None = 60,
        period_s: float = 0.7,
    ) -> None:
        """`keys`: an API key per owner. `guilty_every`: one job of this many kills its engine."""
        self._owners = list(keys)
        self._clients = {
            owner: httpx.AsyncClient(
                base_url=url,
                headers={"Authorization": f"Bearer {key}"},
                timeout=_REQUEST_TIMEOUT_S,
                trust_env=False,
                limits=httpx.Limits(max_connections=2 * _MOST_OPEN),
            )
            for owner, key in keys.items()
        }
        self._receivers = receivers
        self._record = record
        self._chance = random.Random(f"load {seed}")
        self._guilty_every = guilty_every
        self._period_s = period_s
        self._count = 0
        self._following: set[asyncio.Task[None]] = set()
        self.open: dict[str, Request] = {}
        """Accepted jobs that have not been seen to end or to be erased."""
        self.accepted: dict[str, Request] = {}
        self._erased: set[str] = set()
        """Jobs that this caller asked to erase, which may be unknown from then on."""

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Submit while the context lasts; open jobs continue until `settle`."""
        submitting = asyncio.create_task(self.run(math.inf))
        try:
            yield
            assert not submitting.done(), submitting
        finally:
            submitting.cancel()
            await asyncio.wait({submitting})

    async def run(self, duration_s: float) -> None:
        """Submit for this time and return; open jobs continue until `settle`."""
        stop_at = time.monotonic() + duration_s
        while time.monotonic() < stop_at:
            if len(self._following) < _MOST_OPEN:
                self._begin(self._serve(self._next_request()))
            await asyncio.sleep(self._period_s * self._chance.uniform(0.5, 1.5))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._following.add(task)
        task.add_done_callback(self._following.discard)

    async def begin_long(self) -> str:
        """Submit a job of many seconds and return its id once it makes progress. It is not
        cancelled.
        """
        self._count += 1
        marker, owner = marker_of(self._count), self._owners[0]
        body = diffusion(prompt=marker, steps=60, width=256, height=256)
        query = {"callback_url": self._receivers.url(owner, GOOD)}
        request = Request(marker, owner, "diffusion", body, query, f"key-{marker}")
        job_id = await self._accepted(request)
        assert job_id is not None
        self._begin(self._follow(request, job_id))
        path, asked = "/diffusion/v1/result", {"request_id": job_id}

        async def progress() -> Any:
            _, body = await self._call(owner, "GET", path, params=asked)
            return body.get("progress")

        await eventually(progress)
        return job_id

    async def goes_on(self) -> None:
        """Wait until a newly submitted job has ended."""
        before = set(self.accepted)
        await eventually(lambda: self.accepted.keys() - before - self.open.keys())

    async def settle(self, *, within_s: float) -> None:
        """Wait until each accepted job has been seen to end, or the time is over."""
        if self._following:
            await asyncio.wait(self._following, timeout=within_s)
        await self._stop_following()

    async def ask_all(self, *, within_s: float) -> None:
        """Record the current result of each accepted job, of as many as possible in this time."""
        give_up_at = time.monotonic() + within_s
        for job_id, request in self.accepted.items():
            if time.monotonic() > give_up_at:
                break
            code, status = await self._result(request, job_id)
            self._record.add("result", job_id=job_id, code=code, status=status)

    async def _stop_following(self) -> None:
        following = list(self._following)
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)

    async def close(self) -> None:
        await self._stop_following()
        for client in self._clients.values():
            await client.aclose()

    # The requests.

    def _next_request(self) -> Request:
        self._count += 1
        marker, chance = marker_of(self._count), self._chance
        owner = chance.choice(self._owners)
        flavour, body, is_guilty = self._body(marker)
        query = {}
        if chance.random() < 0.6:
            query["callback_url"] = self._receivers.url(owner, chance.choice(BEHAVIOURS))
        if chance.random() < 0.03:
            query["callback_url"] = self._receivers.forbidden_url
        key = f"key-{marker}" if chance.random() < 0.4 else None
        return Request(marker, owner, flavour, body, query, key, is_guilty)

    def _body(self, marker: str) -> tuple[str, dict[str, Any], bool]:
        chance = self._chance
        every = self._guilty_every
        if every and self._count % every == every // 2:
            return "workflow", _worded(workflow(), f"{marker} {POISON}"), True
        lot = chance.random()
        seed = chance.randrange(2**31)
        if lot < 0.06:
            return "diffusion", diffusion(prompt=marker, sampler_name="no such sampler"), False
        if lot < 0.10:
            return "workflow", {"prompt": {"1": {"class_type": marker, "inputs": {}}}}, False
        if lot < 0.50:
            batch_size = chance.choice((1, 1, 2))
            return "workflow", _worded(workflow(seed=seed, batch_size=batch_size), marker), False
        changes: dict[str, Any] = {"prompt": marker, "seed": seed}
        if lot > 0.88:
            changes |= {"steps": chance.randrange(40, 120), "batch_size": 2}
        return "diffusion", diffusion(**changes), False

    # Submission and observation of jobs.

    async def _serve(self, request: Request) -> None:
        job_id = await self._accepted(request)
        if job_id is None:
            return
        lot = self._chance.random()
        if lot < 0.10:
            await asyncio.sleep(self._chance.uniform(0, 3))
            await self._end(request, job_id, "cancel")
        elif lot < 0.20:
            await asyncio.sleep(self._chance.uniform(0, 12))
            await self._end(request, job_id, "erase")
        await self._follow(request, job_id)

    async def _accepted(self, request: Request) -> str | None:
        """Submit and return the job's id; None if it was refused or the answer is unknown."""
        self._record.add(
            "submit",
            marker=request.marker,
            owner=request.owner,
            idempotency_key=request.idempotency_key,
            is_guilty=request.is_guilty,
        )
        job_id = await self._submit(request)
        if job_id is not None:
            self.accepted[job_id] = self.open[job_id] = request
        return job_id

    async def _submit(self, request: Request) -> str | None:
        """Submit; with a key repeat until the answer is certain, and sometimes once more."""
        job_id = None
        for _ in range(_MOST_REPEATS if request.idempotency_key else 1):
            status, job_id = await self._send(request)
            if status == httpx.codes.ACCEPTED:
                break
            if status is not None and 400 <= status < 500 and status != 429:
                return None
            await asyncio.sleep(self._chance.uniform(0.5, 2))
        if request.idempotency_key and job_id and self._chance.random() < 0.2:
            await self._send(request)
        return job_id

    async def _send(self, request: Request) -> tuple[int | None, str | None]:
        status, body = await self._call(
            request.owner,
            "POST",
            f"/{request.flavour}/v1/generate",
            json=request.body,
            params=request.query,
            headers={"Idempotency-Key": key} if (key := request.idempotency_key) else {},
        )
        error = body.get("error", {}).get("type") if isinstance(body.get("error"), dict) else None
        job_id = body.get("request_id")
        self._record.add("answer", marker=request.marker, status=status, error=error, job_id=job_id)
        return status, job_id

    async def _end(self, request: Request, job_id: str, what: str) -> None:
        """Cancel or erase the job, and repeat until the service has answered."""
        path = f"/v1/jobs/{job_id}"
        if what == "erase":
            self._erased.add(job_id)
        for _ in range(_MOST_REPEATS):
            call = ("POST", f"{path}/cancel") if what == "cancel" else ("DELETE", path)
            # This is recorded before the answer, which may be lost.
            self._record.add(what, job_id=job_id, status=None)
            status, _ = await self._call(request.owner, *call)
            self._record.add(what, job_id=job_id, status=status)
            if status is not None and status < 500 and status != 429:
                break
            await asyncio.sleep(self._chance.uniform(0.5, 2))

    async def _follow(self, request: Request, job_id: str) -> None:
        """Follow the job until its result says that it has ended or was erased."""
        while True:
            code, status = await self._result(request, job_id, wait_s=_KNOWN_WAIT_S)
            if status:
                break
            if code == httpx.codes.NOT_FOUND:
                if job_id in self._erased:
                    break
                self._record.add("not_found", job_id=job_id)
            await asyncio.sleep(0.5)
        self.open.pop(job_id, None)

    async def _result(
        self, request: Request, job_id: str, *, wait_s: int = 0
    ) -> tuple[int | None, int | None]:
        path = f"/{request.flavour}/v1/result"
        query = {"request_id": job_id, "wait": wait_s}
        code, body = await self._call(request.owner, "GET", path, params=query)
        return code, body.get("status")

    async def _call(
        self, owner: str, method: str, path: str, **options: Any
    ) -> tuple[int | None, dict[str, Any]]:
        """Return the status and the service's own body, otherwise an empty one; None: no answer."""
        try:
            answer = await self._clients[owner].request(method, path, **options)
        except httpx.TransportError:
            return None, {}
        body: Any = None
        with suppress(ValueError):
            body = answer.json()
        return answer.status_code, body if isinstance(body, dict) else {}


def _worded(graph: dict[str, Any], text: str) -> dict[str, Any]:
    graph["prompt"]["6"]["inputs"]["text"] = text
    return graph
