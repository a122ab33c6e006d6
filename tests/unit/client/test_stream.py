"""The event stream of a job, cut into any pieces and over several connections."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from darkroom_client import Darkroom, Event, Refused, Unreachable, stream
from darkroom_client.core import Answer
from darkroom_client.errors import AnswerInvalid
from darkroom_client.stream import watching_all, watching_job
from httpx_sse import ServerSentEvent

ID = "0199aaaa-0000-7000-8000-000000000001"
STARTED = b'event: started\ndata: {"a": "\xc3\xa9"}\nid: 7\n\n'
COMPLETED = b"event: completed\r\ndata: {}\r\nid: 9\r\n\r\n"
STREAM = b"retry: 1000\nid: 5\n\n: there\n\n" + STARTED
STREAM += b'event: progress\ndata: {"step": 1}\n\n' + COMPLETED


class Connections(httpx.BaseTransport):
    """Each connection sends its chunks and then breaks; one that is an exception fails."""

    def __init__(self, *answers: list[bytes] | Exception | int) -> None:
        self._answers = list(answers)
        self.last_ids: list[str | None] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.last_ids.append(request.headers.get("last-event-id"))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            return httpx.Response(answer)

        def chunks() -> Iterator[bytes]:
            yield from answer
            raise httpx.ReadError("lost")

        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=chunks())


def watched(connections: Connections) -> list[Event]:
    with Darkroom("http://darkroom.test", "dk", transport=connections) as darkroom:
        return list(darkroom.watch(ID))


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "backoff_s", lambda _number: 0.0)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_events_come_whole_however_they_are_cut(size: int) -> None:
    chunks = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    events = watched(Connections(chunks))
    names = [(event.name, event.id) for event in events]
    assert names == [("started", "7"), ("progress", None), ("completed", "9")]
    assert events[0].data == {"a": "é"}


def test_the_next_connection_continues_after_the_last_event() -> None:
    away = (httpx.ConnectError("away"), 503)
    connections = Connections([STARTED, b"data: {"], *away, [COMPLETED])
    assert [event.name for event in watched(connections)] == ["started", "completed"]
    assert connections.last_ids == [None, "7", "7", "7"]


def test_one_that_breaks_before_its_first_event_continues_from_its_beginning() -> None:
    connections = Connections([b"id: 3\nretry: 1000\n\n", b"id: 4\n"], 204)
    assert watched(connections) == []
    assert connections.last_ids == [None, "3"]


def test_it_gives_up_after_so_many_connections_without_an_event() -> None:
    with pytest.raises(Unreachable, match="away"):
        watched(Connections(*[httpx.ConnectError("away")] * 13))


def test_a_refusal_is_an_error() -> None:
    with pytest.raises(Refused):
        watched(Connections(404))
    with pytest.raises(Refused):
        watched(Connections([STARTED], 403))


def test_too_many_streams_are_an_error_before_the_first_event_alone() -> None:
    full = Answer(429, {}, b'{"error": {"type": "too_many_streams"}}')
    watching = watching_all({"endpoint": "default"})
    with pytest.raises(Refused):
        watching.handle_answer(full)
    watching.handle_message(ServerSentEvent("completed", "{}", "7"))
    watching.handle_answer(full)
    assert not watching.is_over
    assert watching.call().query == {"endpoint": "default"}


@pytest.mark.parametrize("chunk", [b"data: no JSON\n\n", b"data: \xff\n\n"])
def test_what_is_no_stream_of_the_service_is_an_error_of_the_client(chunk: bytes) -> None:
    with pytest.raises(AnswerInvalid):
        watched(Connections([chunk]))
    with pytest.raises(AnswerInvalid):
        watching_job(ID).handle_answer(Answer(200, {}, b"<html>"))
