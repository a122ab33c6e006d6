"""Event streams as the command line reads them, and goes on where one was lost."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from serve_app.cli.exit_codes import ExitCode
from serve_app.cli.remote.client import Client, ClientError
from serve_app.cli.remote.streams import EventStream, StreamEvent, read_events

STARTED = b'event: started\ndata: {"subject": "a"}\nid: 7\n\n'
COMPLETED = b'event: completed\ndata: {"subject": "a"}\nid: 9\n\n'


class Connections(Client):
    """Each answers its chunks and then breaks off; one that is an exception is not made."""

    def __init__(self, *answers: list[bytes] | Exception) -> None:
        super().__init__("http://127.0.0.1:9", "dk")
        self._answers = list(answers)
        self.last_ids: list[str | None] = []

    @contextmanager
    def stream(
        self, path: str, query: Mapping[str, Any], headers: Mapping[str, str], *, silence_s: float
    ) -> Generator[httpx.Response]:
        self.last_ids.append(headers.get("Last-Event-ID"))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer

        def chunks() -> Generator[bytes]:
            yield from answer
            raise httpx.ReadError("lost")

        status = 204 if not answer else 200
        yield httpx.Response(status, content=chunks() if answer else b"")


def refused(code: ExitCode) -> ClientError:
    return ClientError("no", code=code)


def names(client: Client, **options: Any) -> list[str]:
    return [event.name for event in EventStream(client, "/", first_pause_s=0, **options)]


def test_what_was_lost_goes_on_by_the_last_id() -> None:
    away = (httpx.ConnectError("away"), refused(ExitCode.LIMITED))
    client = Connections([STARTED], *away, [COMPLETED], [])
    assert names(client) == ["started", "completed"]
    assert client.last_ids == [None, "7", "7", "7", "9"]


def test_one_that_breaks_before_its_first_event_goes_on_from_its_beginning() -> None:
    client = Connections([b"id: 3\nretry: 1000\n\n", b"id: 4\n"], [COMPLETED], [])
    assert names(client) == ["completed"]
    assert client.last_ids == [None, "3", "9"]


@pytest.mark.parametrize("code", [ExitCode.NOT_FOUND, ExitCode.UNAVAILABLE])
def test_one_that_is_never_had_is_told_at_once(code: ExitCode) -> None:
    with pytest.raises(ClientError):
        names(Connections(refused(code)))


def test_a_refusal_later_on_is_told() -> None:
    with pytest.raises(ClientError):
        names(Connections([STARTED], refused(ExitCode.FORBIDDEN)))


def test_a_service_that_stays_away_is_given_up() -> None:
    with pytest.raises(ClientError):
        names(Connections([STARTED], httpx.ConnectError("away")), patience_s=0)


def test_chunks_end_anywhere_and_comments_are_left_out() -> None:
    text = b": hi\n\nretry: 1000\n\n" + STARTED + COMPLETED.replace(b"\n", b"\r\n") + b"data: {"
    found = list(read_events(text[i : i + 1] for i in range(len(text))))
    assert found == [
        StreamEvent("started", {"subject": "a"}, "7"),
        StreamEvent("completed", {"subject": "a"}, "9"),
    ]
