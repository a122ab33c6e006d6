"""Operations of the client, driven by hand: what is called, repeated, and given up."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from darkroom_client import core
from darkroom_client.core import Answer, Call, Clock, Flow, Lost, Now, Pause, Sent
from darkroom_client.errors import AnswerInvalid, DarkroomError, NotEnded, Refused, Unreachable
from darkroom_client.values import Options, Put, PutState, Result, State

ID = "0199aaaa-0000-7000-8000-000000000001"


def answer(status: int = 200, body: Any = None, **headers: str) -> Answer:
    return Answer(status, headers, b"" if body is None else json.dumps(body).encode())


def job(state: State = State.QUEUED) -> Answer:
    status = {State.COMPLETED: 1, State.FAILED: 2, State.CANCELLED: 2}.get(state, 0)
    return answer(body={"request_id": ID, "status": status, "state": state, "results": []})


def driven(
    flow: Flow[Any], *sents: Sent, wait_s: float | None = None
) -> tuple[list[Call], list[float], Any]:
    """The calls and the pauses of a flow that is given these answers, and what it returns.

    An answer takes `wait_s`, or as long as the call may wait.
    """
    answers, calls, pauses = iter(sents), list[Call](), list[float]()
    clock_s = 0.0
    sent: Sent = None
    try:
        while True:
            match step := flow.send(sent):
                case Call():
                    calls.append(step)
                    clock_s += float(step.query.get("wait", 0)) if wait_s is None else wait_s
                    sent = next(answers)
                case Pause(seconds=seconds):
                    pauses.append(seconds)
                    sent = None
                case Clock():
                    sent = Now(clock_s)
    except StopIteration as end:
        return calls, pauses, end.value


def test_a_submission_has_a_key_of_its_own_that_tries_keep() -> None:
    options = Options(image_format="webp", preview=True, callback_events=["image", "completed"])
    flow = core.submitted(core.DIFFUSION_PATH, {"prompt": "x"}, options, None)
    calls, pauses, result = driven(flow, Lost("reset"), answer(503, {}), job())
    assert result.state is State.QUEUED
    assert len({call.headers["Idempotency-Key"] for call in calls}) == 1
    assert calls[0].query == {
        "image_format": "webp",
        "preview": "true",
        "callback_events": "image,completed",
    }
    assert len(pauses) == 2
    assert calls[0].json == {"prompt": "x"}
    [first, *_], _, _ = driven(core.submitted(core.WORKFLOW_PATH, {}, Options(), "mine"), job())
    assert first.headers["Idempotency-Key"] == "mine"


def test_images_are_put_where_the_options_say_and_tell_of_it() -> None:
    options = Options(image_put_urls=["https://bucket.example.com/0.png?signature=x"])
    item = {"status": 1, "url": "u/0.png", "put": {"status": 2, "message": "it answered 403"}}
    ended = answer(body={"request_id": ID, "status": 1, "state": "completed", "results": [item]})
    calls, _, result = driven(
        core.submitted(core.DIFFUSION_PATH, {"prompt": "x"}, options, None), ended
    )
    assert calls[0].json == {"prompt": "x", "image_put_urls": options.image_put_urls}
    assert "image_put_urls" not in calls[0].query
    assert result.images[0].put == Put(PutState.FAILED, "it answered 403")


def test_a_result_may_be_a_video_or_a_text() -> None:
    video = {"kind": "video", "media_type": "video/mp4", "size_bytes": 9, "duration_s": 2.5}
    video |= {"status": 1, "url": "u/0.mp4?token=x", "poster_url": "u/0-poster.jpg"}
    text = {"status": 1, "url": "u/1.txt", "kind": "text", "text": "a cat"}
    result = Result.of({"request_id": ID, "status": 1, "results": [video, text]})
    shown, said = result.images
    assert (shown.suffix, shown.kind, shown.media_type) == (".mp4", "video", "video/mp4")
    assert (shown.duration_s, shown.poster_url, shown.text) == (2.5, "u/0-poster.jpg", None)
    assert (said.kind, said.text, said.duration_s) == ("text", "a cat", None)


def test_a_refusal_is_not_repeated_and_says_why() -> None:
    error = {"type": "invalid_request", "message": "No.", "details": "steps: too many"}
    with pytest.raises(Refused, match=r"No\. steps: too many") as refused:
        driven(core.result(ID), answer(400, {"error": error, "node_errors": {}}))
    assert (refused.value.status, refused.value.type) == (400, "invalid_request")


@pytest.mark.parametrize("body", [None, [], {"error": "text"}, {"error": {"type": 5}}])
def test_an_error_of_something_else_is_one_too(body: Any) -> None:
    with pytest.raises(Refused):
        driven(core.result(ID), answer(404, body))


@pytest.mark.parametrize(
    "body", [b"", b"<html>Welcome</html>", b"[]", b"{}", b'"text"', b"[" * 100_000]
)
@pytest.mark.parametrize(
    "flow",
    [
        lambda: core.result(ID),
        lambda: core.submitted(core.DIFFUSION_PATH, {}, Options(), None),
        lambda: core.cancelled(ID),
        lambda: core.uploaded("cat.png", b""),
    ],
)
def test_an_answer_of_something_else_is_an_error_of_the_client(
    flow: Callable[[], Flow[Any]], body: bytes
) -> None:
    with pytest.raises(AnswerInvalid, match="address of the service") as invalid:
        driven(flow(), Answer(200, {}, body))
    assert isinstance(invalid.value, DarkroomError)
    assert invalid.value.status == 200


def test_it_comes_back_when_it_was_told_to() -> None:
    _, pauses, _ = driven(core.result(ID), Answer(429, {"retry-after": "7"}, b""), job())
    assert pauses == [7.0]


def test_it_gives_up() -> None:
    with pytest.raises(Unreachable, match="reset"):
        driven(core.result(ID), *[Lost("reset")] * 6)
    with pytest.raises(Refused):
        driven(core.result(ID), *[answer(503)] * 6)


def test_waiting_asks_again_until_the_end() -> None:
    flow = core.waited(ID, timeout_s=None, inline=True)
    calls, _, result = driven(flow, job(), job(State.RUNNING), job(State.FAILED))
    assert result.has_ended
    assert [call.query["wait"] for call in calls] == ["60.000"] * 3
    assert {call.query["inline"] for call in calls} == {"true"}
    assert calls[0].timeout_s > 60


def test_a_redirect_is_no_answer() -> None:
    """It may lead to another host, which must not get the key."""
    with pytest.raises(Refused) as refused:
        driven(core.result(ID), answer(308, location="https://elsewhere.example.com/"))
    assert refused.value.status == 308


def test_waiting_is_no_flood_where_the_answers_come_at_once() -> None:
    flow = core.waited(ID, timeout_s=None, inline=False)
    open_jobs = [job()] * 5
    _, pauses, _ = driven(flow, *open_jobs, job(State.FAILED), wait_s=0.0)
    assert len(pauses) >= 4
    assert min(pauses) >= 1


def test_waiting_ends_in_time() -> None:
    with pytest.raises(NotEnded):
        driven(core.waited(ID, timeout_s=70, inline=False), *[job()] * 2)


def test_an_id_is_no_path() -> None:
    with pytest.raises(ValueError, match="UUID"):
        driven(core.erased("../keys"))


def test_a_state_that_is_not_known_is_told_by_the_status() -> None:
    body = {"request_id": ID, "status": 1, "state": "framed", "results": [{"status": 1}]}
    result = Result.of(body)
    assert (result.state, result.images) == (State.COMPLETED, ())


def test_a_call_of_any_route_is_made_once() -> None:
    call = Call("GET", "/v1/models")
    models: dict[str, Any] = {"models": []}
    assert driven(core.called_once(call), answer(body=models)) == ([call], [], models)
    assert driven(core.called_once(call), Answer(204, {}, b""))[2] is None
    for sent, error in (
        (Lost("reset"), Unreachable),
        (answer(503, {}), Refused),
        (Answer(200, {}, b"<html>"), AnswerInvalid),
    ):
        with pytest.raises(error):
            driven(core.called_once(call), sent)
