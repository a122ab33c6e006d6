import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serve_app.api_error import ApiError
from serve_app.body import MAX_DEPTH, parse_json
from tests.support.edge import running_edge
from tests.support.generate_bodies import CHECKPOINT, GENERATE_PATHS, diffusion_body, workflow_body

JSON = {"Content-Type": "application/json"}
MAX_BYTES = 64 * 1024
LIMITS = {
    "max_body_bytes": MAX_BYTES,
    "max_image_body_bytes": MAX_BYTES,
    "max_unread_body_bytes": 0,
}


@pytest.fixture
async def client(tmp_path: Path) -> AsyncGenerator[httpx.AsyncClient]:
    async with (
        running_edge(tmp_path, **LIMITS) as edge,
        await edge.client() as client,
    ):
        yield client


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


class TestInvalidJson:
    @pytest.mark.parametrize("path", GENERATE_PATHS)
    @pytest.mark.parametrize(
        "body",
        [
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
        ],
    )
    async def test_it_is_named(self, client: httpx.AsyncClient, path: str, body: bytes) -> None:
        answer = await client.post(path, content=body, headers=JSON)
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_json"

    async def test_what_is_unusual_but_valid_is_read(self, client: httpx.AsyncClient) -> None:
        text = json.dumps(diffusion_body())[1:]
        for start in ('{"prompt": "first",', '{"negative_prompt": "\\ud83d\\ude00",', "\r\n\t {"):
            answer = await client.post(
                "/diffusion/v1/generate", content=(start + text).encode(), headers=JSON
            )
            assert answer.status_code == 202

    async def test_the_deepest_body_can_be_stored_and_shown(
        self, client: httpx.AsyncClient
    ) -> None:
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


class TestSize:
    async def test_the_largest_body_is_read(self, client: httpx.AsyncClient) -> None:
        body = json.dumps(diffusion_body()).encode()
        padded = body + b" " * (MAX_BYTES - len(body))
        answer = await client.post("/diffusion/v1/generate", content=padded, headers=JSON)
        assert answer.status_code == 202

    async def test_one_byte_more_is_413(self, client: httpx.AsyncClient) -> None:
        answer = await client.post(
            "/diffusion/v1/generate", content=b" " * (MAX_BYTES + 1), headers=JSON
        )
        assert answer.status_code == 413
        assert answer.json()["error"]["extra_info"] == {"max_bytes": MAX_BYTES}

    async def test_a_body_of_unknown_length_is_read_no_further_than_the_limit(
        self, client: httpx.AsyncClient
    ) -> None:
        sent = 0

        async def endless() -> AsyncGenerator[bytes]:
            nonlocal sent
            while sent < 100 * MAX_BYTES:
                sent += 1024
                yield b" " * 1024

        answer = await client.post("/diffusion/v1/generate", content=endless(), headers=JSON)
        assert answer.status_code == 413
        assert sent <= 2 * MAX_BYTES

    @pytest.mark.parametrize("length", ["9" * 5000, "9" * 19, "-1", "x", "¹"])
    async def test_an_absurd_length_is_no_error_of_ours(
        self, client: httpx.AsyncClient, length: str
    ) -> None:
        headers = {**JSON, "Content-Length": length.encode("latin-1")}
        answer = await client.post("/diffusion/v1/generate", content=b"[]", headers=headers)
        assert 400 <= answer.status_code < 500


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": ""},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "multipart/form-data; boundary=application/json"},
        {"Content-Type": "application/jsonp"},
        {**JSON, "Content-Encoding": "gzip"},
    ],
)
async def test_what_is_not_said_to_be_json_is_415(
    client: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    answer = await client.post("/diffusion/v1/generate", content=b"{}", headers=headers)
    assert answer.status_code == 415
    assert answer.json()["error"]["type"] == "unsupported_media_type"


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "APPLICATION/JSON"])
async def test_json_may_be_said_in_other_words(
    client: httpx.AsyncClient, content_type: str
) -> None:
    answer = await client.post(
        "/diffusion/v1/generate",
        content=json.dumps(diffusion_body()),
        headers={"Content-Type": content_type},
    )
    assert answer.status_code == 202


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**30, max_value=10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from([CHECKPOINT, "euler", "normal", "-1", "1e999", "\x00"])
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
LINKS = st.lists(
    st.sampled_from(["3", "4", "5", "8", "9", 0, 1, 2, -1, True, None, ""]), max_size=3
)
INPUT_NAMES = st.sampled_from(
    ["seed", "steps", "cfg", "model", "images", "text", "width", "batch_size", "ckpt_name", "vae"]
)
NODES = st.fixed_dictionaries(
    {},
    optional={
        "class_type": st.sampled_from(["KSampler", "SaveImage", "VAEDecode", "x"]) | ANYTHING,
        "inputs": st.dictionaries(INPUT_NAMES, ANYTHING | LINKS) | ANYTHING,
    },
)
GRAPHS = st.dictionaries(st.sampled_from(["3", "4", "8", "9", ""]), NODES | ANYTHING, max_size=5)
WORKFLOWS = st.fixed_dictionaries({"prompt": GRAPHS | ANYTHING}, optional={"extra_data": ANYTHING})
PARAMETERS = st.fixed_dictionaries(
    {"prompt": st.text() | ANYTHING},
    optional={name: ANYTHING for name in diffusion_body() if name != "prompt"},
)
hostile = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def is_no_empty_object(body: bytes) -> bool:
    """One is a job with the default of each parameter."""
    try:
        return bool(json.loads(body) != {})
    except ValueError:
        return True


class TestHostileBodies:
    """No body, however broken, gets a 5xx."""

    @hostile
    @given(st.sampled_from(sorted(GENERATE_PATHS)), st.binary().filter(is_no_empty_object))
    async def test_bytes(self, client: httpx.AsyncClient, path: str, body: bytes) -> None:
        answer = await client.post(path, content=body, headers=JSON)
        assert answer.status_code == 400
        assert set(answer.json()) == {"error", "node_errors"}

    @hostile
    @given(st.sampled_from(sorted(GENERATE_PATHS)), ANYTHING | WORKFLOWS | PARAMETERS)
    async def test_json(self, client: httpx.AsyncClient, path: str, body: Any) -> None:
        content = json.dumps(body).encode()
        answer = await client.post(path, content=content, headers=JSON)
        assert answer.status_code in {202, 400}

    @hostile
    @given(st.text(), st.text())
    async def test_query(self, client: httpx.AsyncClient, endpoint: str, url: str) -> None:
        query = {
            "endpoint": endpoint.encode("utf-8", "surrogatepass"),
            "callback_url": url.encode("utf-8", "surrogatepass"),
        }
        answer = await client.post("/diffusion/v1/generate", params=query, json=diffusion_body())
        assert answer.status_code in {400, 404}

    @hostile
    @given(st.binary())
    async def test_paths(self, client: httpx.AsyncClient, tail: bytes) -> None:
        quoted = "".join(f"%{byte:02x}" for byte in tail)
        for path in (f"/v1/jobs/{quoted}", f"/files/{quoted}/0.png", f"/files/a/{quoted}?token=a"):
            answer = await client.get(path)
            assert answer.status_code < 500
