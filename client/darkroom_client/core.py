"""The operations of both clients as generators without I/O.

A generator yields steps: calls, pauses and requests for the current time. `AsyncDarkroom` and
`Darkroom` perform each step and send its result back into the generator. The result of a call is
an `Answer`, or `Lost` if the service did not answer.
"""

from __future__ import annotations

import json
import random
import re
import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote

from darkroom_client.errors import AnswerInvalid, NotEnded, Refused, Unreachable
from darkroom_client.values import Image, Options, Result, Upload

T = TypeVar("T")

DIFFUSION_PATH = "/diffusion/v1/generate"
WORKFLOW_PATH = "/workflow/v1/generate"
TIMEOUT_S = 30.0
LONG_TIMEOUT_S = 120.0
_LONGEST_WAIT_S = 60.0
_SHORTEST_WAIT_S = 1.0
"""If a request for a result takes fewer seconds, the next one follows after a pause. Otherwise a
service that ignores `wait` would get requests without a pause.
"""
_TRIES = 6
_LONGEST_PAUSE_S = 30.0
_TEMPORARY = frozenset({429, 502, 503, 504})
_SECONDS = re.compile(r"[0-9]{1,6}")


@dataclass(frozen=True, slots=True)
class Call:
    method: str
    path: str
    """A path of the service, or a whole URL, which is called without the API key."""
    query: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    json: Any = None
    file: tuple[str, bytes] | None = None
    timeout_s: float = TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Clock:
    """A step that requests the current time. Its result is a `Now`."""


@dataclass(frozen=True, slots=True)
class Now:
    seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    """The names are in lower case."""
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body) if self.body else None
        except (ValueError, RecursionError):
            return None

    def read(self, read: Callable[[Any], T]) -> T:
        """Apply `read` to the parsed JSON body. Raises AnswerInvalid if `read` fails."""
        try:
            return read(self.json())
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise AnswerInvalid(self.status) from error


@dataclass(frozen=True, slots=True)
class Lost:
    """The result of a call that got no answer; `why` is the reason."""

    why: str


Step: TypeAlias = Call | Pause | Clock
Sent: TypeAlias = Answer | Lost | Now | None
Flow: TypeAlias = Generator[Step, Sent, T]


def called(call: Call) -> Flow[Answer]:
    """Make a call, and repeat it after a temporary error. Raises Refused, Unreachable."""
    why = ""
    for number in range(_TRIES):
        answer = yield call
        if isinstance(answer, Answer):
            # A redirect is an error, because it may lead to another service.
            if answer.status < 300:
                return answer
            if answer.status not in _TEMPORARY:
                raise Refused(answer.status, answer.json())
            last = Refused(answer.status, answer.json())
            why = str(last)
            pause_s = retry_after_s(answer.headers) or backoff_s(number)
        else:
            assert isinstance(answer, Lost)
            last, why, pause_s = None, answer.why, backoff_s(number)
        if number + 1 == _TRIES:
            raise last or Unreachable(why)
        yield Pause(pause_s)
    raise Unreachable(why)


def called_once(call: Call) -> Flow[Any]:
    """Make a call once. Returns its JSON, or None for an answer without a body.

    Raises Refused, AnswerInvalid, Unreachable.
    """
    answer = yield call
    if not isinstance(answer, Answer):
        assert isinstance(answer, Lost)
        raise Unreachable(answer.why)
    if answer.status >= 300:
        raise Refused(answer.status, answer.json())
    body = answer.json()
    if body is None and answer.body:
        raise AnswerInvalid(answer.status)
    return body


def backoff_s(number: int) -> float:
    return min(_LONGEST_PAUSE_S, 0.5 * 2.0**number) * random.uniform(0.7, 1.3)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    text = headers.get("retry-after", "")
    return min(float(text), _LONGEST_PAUSE_S) if _SECONDS.fullmatch(text) else None


def submitted(
    path: str, body: Mapping[str, Any], options: Options, idempotency_key: str | None
) -> Flow[Result]:
    """Submit a job. Because of the idempotency key, repeated requests create only one job."""
    headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
    call = Call("POST", path, options.query(), headers, json=options.body(body))
    return (yield from called(call)).read(Result.of)


def result(request_id: str, *, wait_s: float = 0.0, inline: bool = False) -> Flow[Result]:
    query = {"wait": f"{wait_s:.3f}"} if wait_s > 0 else {}
    if inline:
        query["inline"] = "true"
    call = Call("GET", _job(request_id, "/result"), query, timeout_s=TIMEOUT_S + wait_s)
    return (yield from called(call)).read(Result.of)


def waited(request_id: str, *, timeout_s: float | None, inline: bool) -> Flow[Result]:
    """Wait for the end of a job. Returns its result. Raises NotEnded, Refused, Unreachable."""
    began_s = yield from _now()
    while True:
        left_s = _LONGEST_WAIT_S
        if timeout_s is not None:
            left_s = timeout_s - ((yield from _now()) - began_s)
        asked_at_s = yield from _now()
        found = yield from result(
            request_id, wait_s=max(0.0, min(left_s, _LONGEST_WAIT_S)), inline=inline
        )
        if found.has_ended:
            return found
        if timeout_s is not None and (yield from _now()) - began_s >= timeout_s:
            raise NotEnded(f"{request_id} has not ended within {timeout_s:g} s.")
        if (yield from _now()) - asked_at_s < _SHORTEST_WAIT_S:
            yield Pause(_SHORTEST_WAIT_S)


def cancelled(request_id: str) -> Flow[bool]:
    """Cancel a job. Returns False if the job had already ended in another way."""
    answer = yield from called(Call("POST", _job(request_id, "/cancel")))
    return answer.read(lambda body: bool(body["cancelled"]))


def erased(request_id: str) -> Flow[None]:
    yield from called(Call("DELETE", _job(request_id)))


def uploaded(name: str, data: bytes) -> Flow[Upload]:
    call = Call("POST", "/v1/uploads", file=(name, data), timeout_s=LONG_TIMEOUT_S)
    return (yield from called(call)).read(Upload.of)


def downloaded(image: Image) -> Flow[bytes]:
    if image.data is not None:
        return image.data
    return (yield from called(Call("GET", image.url, timeout_s=LONG_TIMEOUT_S))).body


def run_path(name: str) -> str:
    return f"/v1/workflows/{quote(name, safe='@')}/generate"


def _now() -> Flow[float]:
    now = yield Clock()
    assert isinstance(now, Now)
    return now.seconds


def _job(request_id: str, rest: str = "") -> str:
    return f"/v1/jobs/{uuid.UUID(request_id)}{rest}"
