"""What callers send who do not speak HTTP as they should."""

from __future__ import annotations

import json
import time

import pytest

from tests.integration.edge.conftest import PATIENCE_S, SHORT, Front, get
from tests.support.generate_bodies import diffusion_body

GENERATE = "/diffusion/v1/generate"
BODY = json.dumps(diffusion_body()).encode()


def post(*headers: str, body: bytes = b"", path: str = GENERATE, version: str = "1.1") -> bytes:
    lines = [f"POST {path} HTTP/{version}", "Host: darkroom", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


LARGE_BYTES = 22 * 1024**2
CHUNKED = "Transfer-Encoding: chunked"
JSON = "Content-Type: application/json"

REQUESTS = {
    "HTTP/0.9": b"GET /health/live\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x12\x04" + b"\x00" * 200,
    "empty lines": b"\r\n" * 20_000,
    "a header of 64 kB": get("/health/live", "X: " + "a" * 65_536),
    "a header of 8 kB": get("/health/live", "X: " + "a" * 8_000),
    "1000 headers": get("/health/live", *(f"X{n}: 1" for n in range(1000))),
    "90 headers": get("/health/live", *(f"X{n}: 1" for n in range(90))),
    "a query of 64 kB": get("/health/live?" + "a=1&" * 16_384),
    "a query of 8 kB": get("/v1/jobs?" + "limit=1&" * 1000),
    "a path of 8 kB": get("/files/" + "a" * 8_000),
    "NUL in the path": get("/health/\0live"),
    "NUL in a header": get("/health/live", "X: \0"),
    "%00 in the path": get("/files/%00/%00.png?token=%00"),
    "bytes that are no UTF-8": get("/files/\xff\xfe/\xff.png?token=\xff"),
    "an absolute URI": get("http://elsewhere.example/health/live"),
    "a method of 8 kB": b"A" * 8_000 + get("/health/live")[3:],
    "CONNECT": b"CONNECT elsewhere.example:443 HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n",
    "OPTIONS *": b"OPTIONS * HTTP/1.1\r\nHost: darkroom\r\nConnection: close\r\n\r\n",
    "TRACE": b"TRACE /health/live HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    "no host": b"GET /health/live HTTP/1.1\r\nConnection: close\r\n\r\n",
    "two hosts": get("/health/live", "Host: elsewhere.example"),
    "a folded header": get("/health/live", "X: a\r\n b"),
    "a space before the colon": get("/health/live", "X : a"),
    "lines without CR": get("/health/live").replace(b"\r\n", b"\n"),
    "HTTP/9.9": get("/health/live").replace(b"1.1", b"9.9"),
    "an upgrade": get("/health/live", "Upgrade: websocket", "Connection: upgrade"),
    "two lengths": post("Content-Length: 5", "Content-Length: 6", JSON, body=b"{}   "),
    "a negative length": post("Content-Length: -1", JSON),
    "a length of 4000 digits": post("Content-Length: " + "9" * 4000, JSON),
    "a length and chunks": post("Content-Length: 2", CHUNKED, JSON, body=b"0\r\n\r\n"),
    "a length without a body": post("Content-Length: 500", JSON),
    "a length that is too long": post(f"Content-Length: {len(BODY) + 10}", JSON, body=BODY),
    "a length that is too short": post("Content-Length: 2", JSON, body=BODY * 3),
    "no length": post(JSON, body=BODY),
    "chunks of no size": post(CHUNKED, JSON, body=b"zz\r\n{}\r\n0\r\n\r\n"),
    "a chunk of 2**64 bytes": post(CHUNKED, JSON, body=b"f" * 16 + b"\r\n{}\r\n"),
    "chunks without an end": post(CHUNKED, JSON, body=b"2\r\n{}\r\n"),
    "a chunk extension of 64 kB": post(CHUNKED, JSON, body=b"2;" + b"a" * 65_536 + b"\r\n{}\r\n"),
    "chunked twice": post("Transfer-Encoding: chunked, chunked", JSON, body=b"0\r\n\r\n"),
    "another coding": post("Transfer-Encoding: gzip, chunked", JSON, body=b"0\r\n\r\n"),
    "50 requests at once": get("/health/live").replace(b"close", b"keep-alive") * 50,
    "a form without an end": post(
        "Content-Type: multipart/form-data; boundary=b",
        "Content-Length: 400",
        path="/v1/uploads",
        body=b'--b\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n',
    ),
}
"""Each is answered or closed. `Content-Length` may promise more than comes."""


@pytest.mark.parametrize("name", REQUESTS)
def test_it_is_answered_or_closed_and_nothing_breaks(front: Front, name: str) -> None:
    key = f"\r\nAuthorization: Bearer {front.key}\r\n".encode()
    request = REQUESTS[name].replace(b"\r\nHost: darkroom\r\n", b"\r\nHost: darkroom" + key, 1)
    begun = time.monotonic()
    answer = front.ask(request)
    assert time.monotonic() - begun < PATIENCE_S
    for line in answer.split(b"\r\n"):
        if line.startswith(b"HTTP/1."):
            assert int(line.split()[1]) < 500, answer
    assert front.live_s() < PATIENCE_S


@pytest.mark.parametrize("length", [f"Content-Length: {LARGE_BYTES}", CHUNKED])
def test_an_upload_that_is_refused_while_it_comes_is_told_why(front: Front, length: str) -> None:
    part = b'--b\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
    body = part + b"\0" * (LARGE_BYTES - len(part))
    if length == CHUNKED:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    key = f"Authorization: Bearer {front.key}"
    form = "Content-Type: multipart/form-data; boundary=b"
    answer = front.ask(post(key, form, length, path="/v1/uploads", body=body))
    assert answer.startswith(b"HTTP/1.1 413"), answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "too_large"


def test_a_wait_is_longer_than_a_silence(front: Front) -> None:
    accepted = front.ask(
        post(
            f"Authorization: Bearer {front.key}",
            JSON,
            f"Content-Length: {len(BODY)}",
            "Connection: close",
            body=BODY,
        )
    )
    assert accepted.startswith(b"HTTP/1.1 202"), accepted
    job_id = json.loads(accepted.partition(b"\r\n\r\n")[2])["request_id"]
    begun = time.monotonic()
    path = f"/diffusion/v1/result?request_id={job_id}&wait=3"
    waited = front.ask(get(path, f"Authorization: Bearer {front.key}"))
    assert waited.startswith(b"HTTP/1.1 200"), waited
    assert time.monotonic() - begun >= 2 * SHORT["silence_timeout_s"]
