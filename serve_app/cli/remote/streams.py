"""Event streams of the service, read as they come, over as many connections as it takes."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from serve_app.cli.exit_codes import ExitCode
from serve_app.cli.remote.client import Client, ClientError, job_events_path

ENDS = {"completed", "failed", "cancelled", "erased"}
"""The names of events after which nothing follows of a job."""
_SILENCE_S = 60.0
"""The service says that it is there every ten seconds, unless it is set up otherwise."""
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 10.0
_PASSING = {ExitCode.LIMITED, ExitCode.UNAVAILABLE}


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One Server-Sent Event. `data` is a CloudEvent where there is an `id`."""

    name: str
    data: dict[str, Any] = field(default_factory=dict)
    id: str | None = None

    @property
    def request_id(self) -> str:
        return str(self.data.get("subject") or self.data.get("request_id") or "")


class EventStream:
    """Iterate over it once. A connection that is lost is made again, and goes on by the last id."""

    def __init__(
        self,
        client: Client,
        path: str,
        query: Mapping[str, Any] | None = None,
        *,
        patience_s: float = 300.0,
        first_pause_s: float = _FIRST_PAUSE_S,
    ) -> None:
        """`patience_s`: how long the service may be away before ClientError is raised."""
        self._client = client
        self._path = path
        self._query = dict(query or {})
        self._patience_s = patience_s
        self._first_pause_s = first_pause_s
        self._last_id: str | None = None
        self._has_begun = False
        self._is_over = False

    def __iter__(self) -> Generator[StreamEvent]:
        """Raises ClientError: at once where the first connection is refused."""
        pause_s, heard_at = self._first_pause_s, time.monotonic()
        while not self._is_over:
            try:
                for event in self._connection():
                    pause_s, heard_at = self._first_pause_s, time.monotonic()
                    yield event
                failure = None
            except httpx.TransportError as error:
                failure = self._client.unreachable(error)
            except ClientError as error:
                failure = error
            if failure is not None and not self._is_worth_waiting(failure, heard_at):
                raise failure
            if not self._is_over:
                time.sleep(pause_s * random.uniform(0.8, 1.2))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _is_worth_waiting(self, failure: ClientError, heard_at: float) -> bool:
        is_patient = time.monotonic() - heard_at < self._patience_s
        return self._has_begun and failure.code in _PASSING and is_patient

    def _connection(self) -> Generator[StreamEvent]:
        headers = {} if self._last_id is None else {"Last-Event-ID": self._last_id}
        with self._client.stream(self._path, self._query, headers, silence_s=_SILENCE_S) as answer:
            self._has_begun = True
            if answer.status_code == httpx.codes.NO_CONTENT:
                self._is_over = True
            for event in read_events(answer.iter_bytes()):
                self._last_id = event.id or self._last_id
                if event.data:
                    yield event


def job_events(client: Client, request_id: str) -> Generator[StreamEvent]:
    """What has happened to a job, and what happens until its end. Raises ClientError."""
    for event in EventStream(client, job_events_path(request_id)):
        yield event
        if event.name in ENDS:
            return


def owner_events(client: Client, filters: Mapping[str, Any]) -> Generator[StreamEvent]:
    """What happens to all jobs of the key's owner; `filters` as the route takes them.

    Raises ClientError.
    """
    yield from EventStream(client, "/v1/events", filters)


def read_events(chunks: Iterable[bytes]) -> Generator[StreamEvent]:
    """The events of a `text/event-stream`. One that is cut short, and comments, are left out.

    One without data, from which nothing but its `id` follows, is among them.
    """
    unread = b""
    fields: dict[str, str] = {}
    for chunk in chunks:
        *lines, unread = (unread + chunk).split(b"\n")
        for line in lines:
            name, _, value = line.decode().removesuffix("\r").partition(":")
            if name:
                fields[name] = value.removeprefix(" ")
            elif not value:
                if "data" in fields or "id" in fields:
                    data = json.loads(fields.get("data", "{}"))
                    yield StreamEvent(fields.get("event", "message"), data, fields.get("id"))
                fields = {}
