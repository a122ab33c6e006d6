"""The event stream of a job, cut into any pieces and over several connections."""

import pytest
from darkroom_client.core import Answer
from darkroom_client.errors import AnswerInvalid, DarkroomError, Refused, Unreachable
from darkroom_client.stream import Watching

ID = "0199aaaa-0000-7000-8000-000000000001"
STREAM = (
    b'retry: 1000\nid: 5\n\n: there\n\nevent: started\ndata: {"a": "\xc3\xa9"}\nid: 7\n\n'
    b'event: progress\ndata: {"step": 1}\n\nevent: completed\r\ndata: {}\r\nid: 9\r\n\r\n'
)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_events_come_whole_however_they_are_cut(size: int) -> None:
    watching = Watching(ID)
    watching.call()
    chunks = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    events = [event for chunk in chunks for event in watching.fed(chunk)]
    assert [(event.name, event.id) for event in events] == [
        ("started", "7"),
        ("progress", None),
        ("completed", "9"),
    ]
    assert events[0].data == {"a": "é"}
    assert watching.is_over


def test_the_next_connection_goes_on_where_the_last_one_broke() -> None:
    watching = Watching(ID)
    assert "Last-Event-ID" not in watching.call().headers
    assert [event.id for event in watching.fed(STREAM[:80])] == ["7"]
    assert watching.pause_s("lost") < 1
    assert watching.call().headers["Last-Event-ID"] == "7"
    watching.answered(Answer(204, {}, b""))
    assert watching.is_over


def test_it_gives_up_after_so_many_connections_without_an_event() -> None:
    watching = Watching(ID)
    for _ in range(12):
        watching.answered(Answer(503, {}, b""))
        watching.pause_s("busy")
    with pytest.raises(Unreachable, match="busy"):
        watching.pause_s("busy")


def test_a_refusal_and_a_line_without_end_are_errors() -> None:
    watching = Watching(ID)
    with pytest.raises(Refused):
        watching.answered(Answer(404, {}, b"{}"))
    with pytest.raises(DarkroomError):
        watching.fed(b"x" * (5 * 2**20))


@pytest.mark.parametrize("chunk", [b"data: no JSON\n\n", b"data: \xff\n\n"])
def test_what_is_no_stream_of_the_service_is_an_error_of_the_client(chunk: bytes) -> None:
    with pytest.raises(AnswerInvalid):
        Watching(ID).fed(chunk)
    with pytest.raises(AnswerInvalid):
        Watching(ID).answered(Answer(200, {}, b"<html>"))
