"""What those who watch a job are told of an event."""

from __future__ import annotations

import json

from events.types import Completed, EventData, Started
from serve_app.live.messages import stored_message
from tests.support.events import START, history_of, submitted
from tests.support.telemetry.traces import CALLER, TRACE


def told_of(data: EventData) -> dict[str, object]:
    event = history_of(submitted(), data)[-1]
    lines = stored_message(event, lambda _job, _image: "").decode().splitlines()
    line = next(line for line in lines if line.startswith("data: "))
    said: dict[str, object] = json.loads(line.removeprefix("data: "))["data"]
    return said


def test_nobody_is_told_what_only_traces_tell() -> None:
    assert told_of(Started(attempt=1, actor="a", given_at=START)) == {"attempt": 1}
    assert told_of(Completed(images=1, beside=(f"{TRACE}-{CALLER}",))) == {"images": 1}
