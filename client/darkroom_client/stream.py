"""Watching: the state of an event stream that lasts for several connections, without I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from httpx_sse import ServerSentEvent

from darkroom_client.core import Answer, Call, backoff_s
from darkroom_client.errors import AnswerInvalid, Refused, Unreachable
from darkroom_client.values import Event

SILENCE_S = 60.0
"""Seconds without a byte after which a connection counts as lost. The service sends a comment every
ten seconds.
"""
_MOST_LOSSES = 12
_TEMPORARY = frozenset({429, 502, 503, 504})


class Watching:
    """The state of one event stream, which the client updates.

    Until `is_over` is True, the client sends `call()`, passes each message of the stream to
    `handle_message`, and sleeps for `pause_s` seconds after each connection.
    """

    def __init__(self, path: str, query: Mapping[str, Any], *, is_of_one_job: bool) -> None:
        """With `is_of_one_job`, the stream is over when the job has ended."""
        self._path = path
        self._query = query
        self._is_of_one_job = is_of_one_job
        self._last_id: str | None = None
        self._has_begun = False
        self._losses = 0
        self.is_over = False

    def call(self) -> Call:
        headers = {"Accept": "text/event-stream"}
        if self._last_id is not None:
            headers["Last-Event-ID"] = self._last_id
        return Call("GET", self._path, self._query, headers, timeout_s=SILENCE_S)

    def handle_answer(self, answer: Answer) -> None:
        """Handle an answer that is no stream. Raises Refused, AnswerInvalid.

        A temporary error is not raised, so that the client connects again. `too_many_streams`
        counts as temporary only after the first message of this stream.
        """
        if answer.status == 204:
            self.is_over = True
        elif answer.status == 200:
            raise AnswerInvalid(answer.status)
        elif answer.status >= 400:
            refused = Refused(answer.status, answer.json())
            is_over_limit = refused.type == "too_many_streams" and not self._has_begun
            if is_over_limit or answer.status not in _TEMPORARY:
                raise refused

    def handle_message(self, sent: ServerSentEvent) -> Event | None:
        """Return the event in `sent`, or None if `sent` contains no event. Raises AnswerInvalid."""
        self._has_begun = True
        # The library httpx-sse repeats the last id for messages without an id, such as progress.
        id = sent.id if sent.id and sent.id != self._last_id else None
        self._last_id = id or self._last_id
        if not sent.data:
            return None
        self._losses = 0
        try:
            event = Event(sent.event, json.loads(sent.data), id)
        except ValueError as error:
            raise AnswerInvalid(200) from error
        self.is_over = self._is_of_one_job and event.is_end
        return event

    def pause_s(self, why: str) -> float:
        """Return the seconds before the next connection. Raises Unreachable after many losses."""
        self._losses += 1
        if self._losses > _MOST_LOSSES:
            raise Unreachable(why)
        return backoff_s(self._losses - 1)


def watching_job(request_id: str) -> Watching:
    return Watching(f"/v1/jobs/{UUID(request_id)}/events", {}, is_of_one_job=True)


def watching_all(query: Mapping[str, Any]) -> Watching:
    return Watching("/v1/events", query, is_of_one_job=False)
