"""Bodies of requests: their turns, their form and their size."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serve_app.bodies import MAX_DEPTH, parse_json
from serve_app.error_responses import ApiError
from tests.support.edge import Client, refusal
from tests.support.generate_bodies import GENERATE_PATHS, diffusion_body, workflow_body

JSON = {"Content-Type": "application/json"}
PATH = "/diffusion/v1/generate"
LARGE = json.dumps(diffusion_body(prompt="a" * 20_000)).encode()


def held(**more: float) -> pytest.MarkDecorator:
    """It holds two large bodies, one of each owner, and does not wait for the rest of any."""
    limits = {"max_held_body_bytes": 2 * len(LARGE), "max_unread_body_bytes": 0}
    return pytest.mark.edge(**limits, **more)


class Sender:
    """A body of which all but the last byte has been sent."""

    def __init__(self, client: Client, body: bytes = LARGE) -> None:
        self.may_end, self.begun = asyncio.Event(), asyncio.Event()
        headers = {**JSON, "Content-Length": str(len(body))}
        content = self._content(body)
        self.answer = asyncio.create_task(client.post(PATH, content=content, headers=headers))

    async def _content(self, body: bytes) -> AsyncGenerator[bytes]:
        self.begun.set()
        yield body[:-1]
        await self.may_end.wait()
        yield body[-1:]


@held()
async def test_a_body_waits_for_its_turn(client: Client, bob: Client) -> None:
    first, second = Sender(client), Sender(client)
    await first.begun.wait()
    other = Sender(bob)
    await other.begun.wait()
    assert not second.begun.is_set()  # half of the bytes are one owner's
    assert (await client.post(PATH, json=diffusion_body())).status_code == 202
    for each in (first, other, second):
        each.may_end.set()
        assert (await each.answer).status_code == 202


@held(body_wait_s=0.1)
async def test_who_waits_too_long_for_a_turn_gets_503(client: Client) -> None:
    first = Sender(client)
    await first.begun.wait()
    second = Sender(client)
    answer = await second.answer
    assert refusal(answer) == (503, "busy")
    assert answer.headers["Retry-After"] == "5"
    assert not second.begun.is_set()
    first.may_end.set()
    assert (await first.answer).status_code == 202


@held(body_grace_s=0.2)
async def test_a_body_that_stops_coming_gets_408_and_ends_its_turn(client: Client) -> None:
    answer = await Sender(client).answer
    assert refusal(answer) == (408, "body_too_slow")
    assert answer.headers["Connection"] == "close"
    again = Sender(client)
    again.may_end.set()
    assert (await again.answer).status_code == 202


@held()
async def test_a_large_body_is_checked_like_a_small_one(client: Client) -> None:
    body = workflow_body()
    body["prompt"] |= {f"n{n}": {"class_type": "Nope", "inputs": {}} for n in range(200)}
    refused = await client.post("/workflow/v1/generate", json=body)
    assert refusal(refused) == (400, "missing_node_type")
    broken = await client.post(PATH, content=LARGE[:-1], headers=JSON)
    assert refusal(broken) == (400, "invalid_json")


@held()
async def test_no_key_no_turn(anyone: Client) -> None:
    sender = Sender(anyone)
    answer = await sender.answer
    assert answer.status_code == 401
    assert answer.headers["Connection"] == "close"
    assert not sender.begun.is_set()


@held()
async def test_what_has_no_body_or_was_read_keeps_its_connection(client: Client) -> None:
    assert "Connection" not in (await client.get("/v1/jobs")).headers
    assert "Connection" not in (await client.post(PATH, content=LARGE, headers=JSON)).headers
    assert "Connection" not in (await client.post(PATH, content=b"{", headers=JSON)).headers


MAX_BYTES = 64 * 1024
pytestmark = pytest.mark.edge(
    max_body_bytes=MAX_BYTES, max_image_body_bytes=MAX_BYTES, max_unread_body_bytes=0
)


def test_so_many_arrays_and_objects_are_parsed_at_most() -> None:
    many = b"[" + b",".join([b"[]"] * (2**16 - 1)) + b"]"
    assert len(parse_json(many)) == 2**16 - 1
    with pytest.raises(ApiError, match="not valid JSON"):
        parse_json(b"[" + many + b"]")


@pytest.mark.parametrize("values", [b"[%s1]", b"{%s1: 1}"])
def test_a_long_body_has_no_more_values_than_others(values: bytes) -> None:
    """The parser lets no other thread run: sixteen MiB of them took it seconds."""
    one = b"1," if values.startswith(b"[") else b'"a":1,'
    body = (values % (one * (2**18 + 1))).replace(b"1: 1}", b'"b":1}')
    with pytest.raises(ApiError) as refused:
        parse_json(body)
    assert "commas" in refused.value.details


INVALID = [
    b"",
    b" ",
    b"{",
    b"{'prompt': {}}",
    b"NaN",
    b'{"prompt": NaN}',
    b'{"prompt": -Infinity}',
    b'{"seed": 1e999}',
    b'{"seed": ' + b"9" * 5000 + b"}",
    b"[" * 50_000,
    b'{"a":' * 5_000,
    b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
    b"\xff\xfe{\x00}\x00",
    b'"\xc3\x28"',
    b'\xef\xbb\xbf{"prompt": {}}',
    b'{"prompt": "\\ud800"}',
    b'{"\\uDFFF": 1}',
    b'{"prompt": "\x00"}',
    b"{} {}",
]


@pytest.mark.parametrize("body", INVALID, ids=range(len(INVALID)))
def test_invalid_json_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        parse_json(body)
    assert (refused.value.status, refused.value.type) == (400, "invalid_json")


@pytest.mark.parametrize("path", GENERATE_PATHS)
async def test_every_path_names_invalid_json(client: Client, path: str) -> None:
    for body in (b"", b"{", b'{"prompt": NaN}'):
        answer = await client.post(path, content=body, headers=JSON)
        assert refusal(answer) == (400, "invalid_json")


@pytest.mark.parametrize(
    "start", ['{"prompt": "first",', '{"negative_prompt": "\\ud83d\\ude00",', "\r\n\t {"]
)
async def test_what_is_unusual_but_valid_is_read(client: Client, start: str) -> None:
    text = start + json.dumps(diffusion_body())[1:]
    assert (await client.post(PATH, content=text, headers=JSON)).status_code == 202


async def test_the_deepest_body_can_be_stored_and_shown(client: Client) -> None:
    deep: Any = {}
    for _ in range(MAX_DEPTH - 4):
        deep = [deep]
    pnginfo = {"deep": deep, "large": 10**4000, "text": {"\x00": "\x00"}}
    extra_data = {"extra_pnginfo": pnginfo}
    body = {**workflow_body(), "extra_data": extra_data}
    answer = await client.post("/workflow/v1/generate", json=body)
    assert answer.status_code == 202
    shown = await client.get(f"/v1/jobs/{answer.json()['request_id']}")
    assert shown.json()["request"]["extra_data"] == extra_data


async def test_the_largest_body_is_read_and_one_byte_more_is_413(client: Client) -> None:
    largest = json.dumps(diffusion_body()).encode().ljust(MAX_BYTES)
    assert (await client.post(PATH, content=largest, headers=JSON)).status_code == 202
    answer = await client.post(PATH, content=largest + b" ", headers=JSON)
    assert answer.status_code == 413
    assert answer.json()["error"]["extra_info"] == {"max_bytes": MAX_BYTES}


async def test_a_body_of_unknown_length_is_read_no_further_than_the_limit(client: Client) -> None:
    sent = 0

    async def endless() -> AsyncGenerator[bytes]:
        nonlocal sent
        while sent < 100 * MAX_BYTES:
            sent += 1024
            yield b" " * 1024

    assert (await client.post(PATH, content=endless(), headers=JSON)).status_code == 413
    assert sent <= 2 * MAX_BYTES


@pytest.mark.parametrize("length", ["9" * 5000, "9" * 19, "-1", "x", "¹"])
async def test_an_absurd_length_is_no_error_of_ours(client: Client, length: str) -> None:
    headers = {**JSON, "Content-Length": length.encode("latin-1")}
    answer = await client.post(PATH, content=b"[]", headers=headers)
    assert 400 <= answer.status_code < 500


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "application/json; charset=utf-8"}, 202),
        ({"Content-Type": "APPLICATION/JSON"}, 202),
        ({"Content-Type": ""}, 415),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=application/json"}, 415),
        ({"Content-Type": "application/jsonp"}, 415),
        ({**JSON, "Content-Encoding": "gzip"}, 415),
    ],
)
async def test_a_body_is_said_to_be_json(
    client: Client, headers: dict[str, str], status: int
) -> None:
    answer = await client.post(PATH, content=json.dumps(diffusion_body()), headers=headers)
    assert answer.status_code == status
    if status == 415:
        assert refusal(answer) == (415, "unsupported_media_type")


def is_no_empty_object(body: bytes) -> bool:
    """One is a job with the default of each parameter."""
    try:
        return bool(json.loads(body) != {})
    except ValueError:
        return True


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(GENERATE_PATHS)), st.binary().filter(is_no_empty_object))
async def test_bytes_that_are_no_request_are_refused(
    client: Client, path: str, body: bytes
) -> None:
    answer = await client.post(path, content=body, headers=JSON)
    assert answer.status_code == 400
    assert set(answer.json()) == {"error", "node_errors"}
