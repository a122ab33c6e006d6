"""The event stream of a job, over as many connections as it takes. Does no I/O itself."""

from __future__ import annotations

import json
from uuid import UUID

from darkroom_client.core import Answer, Call, backoff_s
from darkroom_client.errors import AnswerInvalid, DarkroomError, Refused, Unreachable
from darkroom_client.values import Event

SILENCE_S = 60.0
"""The service says that it is there every ten seconds, unless it is set up otherwise."""
_MAX_LINE_BYTES = 4 * 2**20
_MOST_LOSSES = 12
_PASSING = frozenset({429, 502, 503, 504})


class Watching:
    """Call `call()`, hand its bytes to `fed`, and after each connection ask `pause_s`."""

    def __init__(self, request_id: str) -> None:
        self._path = f"/v1/jobs/{UUID(request_id)}/events"
        self._last_id: str | None = None
        self._losses = 0
        self._unread = b""
        self._fields: dict[str, str] = {}
        self.is_over = False

    def call(self) -> Call:
        self._unread, self._fields = b"", {}
        headers = {"Accept": "text/event-stream"}
        if self._last_id is not None:
            headers["Last-Event-ID"] = self._last_id
        return Call("GET", self._path, headers=headers, timeout_s=SILENCE_S)

    def answered(self, answer: Answer) -> None:
        """What came in the place of a stream. Raises Refused, AnswerInvalid."""
        if answer.status == 204:
            self.is_over = True
        elif answer.status == 200:
            raise AnswerInvalid(answer.status)
        elif answer.status >= 400 and answer.status not in _PASSING:
            raise Refused(answer.status, answer.json())

    def fed(self, chunk: bytes) -> list[Event]:
        """Raises DarkroomError where it is no stream of the service."""
        try:
            return self._events(chunk)
        except ValueError as error:
            raise AnswerInvalid(200) from error

    def _events(self, chunk: bytes) -> list[Event]:
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        if len(self._unread) > _MAX_LINE_BYTES:
            raise DarkroomError("A line of the stream has no end.")
        events = []
        for line in lines:
            name, _, value = line.decode().removesuffix("\r").partition(":")
            if name:
                self._fields[name] = value.removeprefix(" ")
            elif not value and (event := self._finished()) is not None:
                events.append(event)
        return events

    def _finished(self) -> Event | None:
        fields, self._fields = self._fields, {}
        self._last_id = fields.get("id") or self._last_id
        if "data" not in fields:
            return None
        self._losses = 0
        event = Event(fields.get("event", "message"), json.loads(fields["data"]), fields.get("id"))
        self.is_over = self.is_over or event.is_end
        return event

    def pause_s(self, why: str) -> float:
        """How long to wait before the next connection. Raises Unreachable."""
        self._losses += 1
        if self._losses > _MOST_LOSSES:
            raise Unreachable(why)
        return backoff_s(self._losses - 1)
