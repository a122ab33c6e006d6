"""What the client does, without doing it: each operation is a generator of calls and pauses.

Whoever runs one sends it the answer of each `Call`, or `Lost` where there was none. So retries and
waiting are written once, for callers with and without asyncio.
"""

from __future__ import annotations

import json
import random
import re
import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

from darkroom_client.errors import AnswerInvalid, NotEnded, Refused, Unreachable
from darkroom_client.values import Image, Options, Result, Upload

T = TypeVar("T")

Flavour = Literal["workflow", "diffusion"]

TIMEOUT_S = 30.0
_LONGEST_WAIT_S = 60.0
_SHORTEST_WAIT_S = 1.0
"""A service in trouble may answer at once that a job has not ended."""
_TRIES = 6
_LONGEST_PAUSE_S = 30.0
_PASSING = frozenset({429, 502, 503, 504})
_SECONDS = re.compile(r"[0-9]{1,6}")


@dataclass(frozen=True, slots=True)
class Call:
    method: str
    path: str
    """Or a whole URL, which is called without the key."""
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    json: Any = None
    file: tuple[str, bytes] | None = None
    timeout_s: float = TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Clock:
    """Asks for the time, in seconds; answered by `Now`."""


@dataclass(frozen=True, slots=True)
class Now:
    seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    """By names in lower case."""
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body) if self.body else None
        except (ValueError, RecursionError):
            return None

    def read(self, read: Callable[[Any], T]) -> T:
        """What `read` makes of the JSON. Raises AnswerInvalid where that is not the service's."""
        try:
            return read(self.json())
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise AnswerInvalid(self.status) from error


@dataclass(frozen=True, slots=True)
class Lost:
    """No answer came."""

    why: str


Step: TypeAlias = Call | Pause | Clock
Sent: TypeAlias = Answer | Lost | Now | None
Flow: TypeAlias = Generator[Step, Sent, T]


def called(call: Call) -> Flow[Answer]:
    """The answer of a call that may be repeated. Raises Refused, Unreachable."""
    why = ""
    for number in range(_TRIES):
        answer = yield call
        if isinstance(answer, Answer):
            if answer.status < 300:  # a redirect is not followed, since it may lead elsewhere
                return answer
            if answer.status not in _PASSING:
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


def backoff_s(number: int) -> float:
    return min(_LONGEST_PAUSE_S, 0.5 * 2.0**number) * random.uniform(0.7, 1.3)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    text = headers.get("retry-after", "")
    return min(float(text), _LONGEST_PAUSE_S) if _SECONDS.fullmatch(text) else None


def submitted(
    flavour: Flavour, body: Mapping[str, Any], options: Options, idempotency_key: str | None
) -> Flow[Result]:
    """A key of its own makes one job of all tries."""
    key = idempotency_key or str(uuid.uuid4())
    path, headers = f"/{flavour}/v1/generate", {"Idempotency-Key": key}
    call = Call("POST", path, options.query(), headers, json=options.body(body))
    return (yield from called(call)).read(Result.of)


def result(request_id: str, *, wait_s: float = 0.0, inline: bool = False) -> Flow[Result]:
    query = {"wait": f"{wait_s:.3f}"} if wait_s > 0 else {}
    if inline:
        query["inline"] = "true"
    call = Call("GET", _job(request_id, "/result"), query, timeout_s=TIMEOUT_S + wait_s)
    return (yield from called(call)).read(Result.of)


def waited(request_id: str, *, timeout_s: float | None, inline: bool) -> Flow[Result]:
    """The result once the job has ended. Raises NotEnded, Refused, Unreachable."""
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
    """False where it had another end before."""
    answer = yield from called(Call("POST", _job(request_id, "/cancel")))
    return answer.read(lambda body: bool(body["cancelled"]))


def erased(request_id: str) -> Flow[None]:
    yield from called(Call("DELETE", _job(request_id)))


def uploaded(name: str, data: bytes) -> Flow[Upload]:
    call = Call("POST", "/v1/uploads", file=(name, data), timeout_s=120.0)
    return (yield from called(call)).read(Upload.of)


def downloaded(image: Image) -> Flow[bytes]:
    if image.data is not None:
        return image.data
    return (yield from called(Call("GET", image.url, timeout_s=120.0))).body


def _now() -> Flow[float]:
    now = yield Clock()
    assert isinstance(now, Now)
    return now.seconds


def _job(request_id: str, rest: str = "") -> str:
    return f"/v1/jobs/{uuid.UUID(request_id)}{rest}"
