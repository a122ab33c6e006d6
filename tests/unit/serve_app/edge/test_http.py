"""Rules of HTTP for every route: methods, slashes, compression, queries, hostile texts."""

from __future__ import annotations

import json

import httpx
import pytest

from events.store.records import Scope
from tests.support.edge import Client, Edge, refusal
from tests.support.generate_bodies import GENERATE_PATHS, body_for, diffusion_body

ADDRESS = "http%3A%2F%2F127.0.0.1%3A9%2F"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/uploads", "GET, POST"),
        ("PUT", "/v1/jobs/x", "DELETE, GET"),
        ("POST", "/v1/uploads/cat.png", "DELETE, GET"),
        ("PUT", "/v1/endpoints/a", "DELETE, GET, PATCH"),
        ("GET", "/diffusion/v1/generate", "POST"),
        ("POST", "/health/live", "GET, HEAD"),
        ("POST", "/docs", "GET"),
    ],
)
async def test_another_method_is_told_all_that_the_path_takes(
    client: Client, method: str, path: str, allowed: str
) -> None:
    answer = await client.request(method, path)
    assert (answer.status_code, answer.headers["Allow"]) == (405, allowed)
    assert answer.json()["error"]["type"] == "method_not_allowed"


async def test_a_slash_behind_a_path_changes_nothing(client: Client) -> None:
    answer = await client.post("/diffusion/v1/generate/", json=diffusion_body())
    assert answer.status_code == 202
    assert answer.headers["Location"].startswith("/diffusion/v1/result?")
    id = answer.json()["request_id"]
    for path in ("/v1/jobs/", f"/v1/jobs/{id}/", f"/diffusion/v1/result/?request_id={id}"):
        assert (await client.get(path)).status_code == 200
    assert (await client.get("/v1/jobs//")).status_code == 404


@pytest.mark.parametrize(("encoding", "expected"), [("gzip", "gzip"), ("identity", None)])
async def test_long_json_is_compressed_for_who_takes_it(
    client: Client, encoding: str, expected: str | None
) -> None:
    answer: httpx.Response = await client.get(
        "/v1/object_info", headers={"Accept-Encoding": encoding}
    )
    assert answer.headers.get("Content-Encoding") == expected
    assert "KSampler" in answer.json()
    short = await client.get("/v1/usage", headers={"Accept-Encoding": encoding})
    assert "Content-Encoding" not in short.headers


@pytest.mark.edge(cors_origins="https://app.example")
@pytest.mark.parametrize("origin", ["https://app.example", "https://other.example"])
async def test_pages_of_the_origins_in_the_settings_may_call_it(
    anyone: Client, origin: str
) -> None:
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    preflight = await anyone.options("/diffusion/v1/generate", headers=asked)
    refused = await anyone.get("/v1/jobs", headers={"Origin": origin})
    allowed = origin == "https://app.example"
    assert preflight.status_code == (200 if allowed else 400)
    for answer in (preflight, refused):
        given = answer.headers.get("Access-Control-Allow-Origin")
        assert given == (origin if allowed else None)
        assert "Access-Control-Allow-Credentials" not in answer.headers


@pytest.mark.edge(cors_origins="https://app.example")
async def test_a_page_may_go_on_with_a_stream_and_with_a_file(anyone: Client) -> None:
    asked = {
        "Origin": "https://app.example",
        "Access-Control-Request-Method": "GET",
        "Access-Control-Request-Headers": "authorization,last-event-id,range",
    }
    assert (await anyone.options("/v1/events", headers=asked)).status_code == 200


async def test_no_page_may_call_it_unless_it_is_set_up(anyone: Client) -> None:
    asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    answer = await anyone.options("/diffusion/v1/generate", headers=asked)
    assert answer.status_code == 405
    assert "Access-Control-Allow-Origin" not in answer.headers


def errors_of(answer: httpx.Response) -> list[tuple[str, str, str]]:
    assert refusal(answer) == (400, "invalid_request")
    fields = answer.json()["error"]["extra_info"]["fields"]
    return [(each["field"], each["type"], each["message"]) for each in fields]


@pytest.mark.parametrize("path", GENERATE_PATHS)
async def test_a_mistyped_parameter_is_refused_and_the_nearest_named(
    client: Client, path: str
) -> None:
    url, body = f"{path}?calback_url={ADDRESS}", body_for(GENERATE_PATHS[path])
    message = "there is no such parameter; did you mean callback_url?"
    answer = await client.post(url, json=body)
    assert errors_of(answer) == [("calback_url", "unknown_parameter", message)]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("/v1/jobs?x=1", "the parameters are status, flavour, endpoint, results, limit, cursor"),
        ("/v1/usage?x=1", "this path has no parameters"),
        ("/v1/jobs?statuss=1", "did you mean status?"),
        ("/v1/jobs?limit=1&limit=2", "the parameter may be sent only once"),
        ("/diffusion/v1/result?request_id=a&request_id=b", "the parameter may be sent only once"),
        ("/diffusion/v1/result?request_id=a&request_id=a", "the parameter may be sent only once"),
        ("/v1/jobs?&=1", "the parameters are status, flavour, endpoint, results, limit, cursor"),
        (f"/v1/jobs?{'statu' * 3000}=1", "the parameters are"),
    ],
)
async def test_what_is_wrong_with_a_parameter_is_told(edge: Edge, url: str, expected: str) -> None:
    async with await edge.client(scopes=tuple(Scope)) as alice:
        [(_, _, message)] = errors_of(await alice.get(url))
    assert expected in message


async def test_of_very_many_some_are_told(client: Client) -> None:
    query = "&".join(f"x{number}=1" for number in range(5000))
    assert len(errors_of(await client.get(f"/v1/jobs?{query}"))) == 50


@pytest.mark.parametrize(
    "url",
    [
        *(f"/v1/jobs?{query}" for query in ("limit=0", "limit=201", "limit=x", "cursor=x")),
        *(f"/v1/jobs?{query}" for query in ("status=3", "status=x", "flavour=x")),
        *(f"/v1/admin/jobs?{query}" for query in ("limit=0", "status=3", "cursor=x")),
        *(f"/v1/admin/jobs?{query}" for query in ("owner=%00", "dead_letter=x")),
        *(f"/v1/admin/jobs/blocked?cursor={each}" for each in (-1, 2**63, "9" * 30, "x")),
        *(f"/v1/keys?{query}" for query in ("limit=0", "limit=201", "cursor=x")),
        *(f"/v1/keys?{query}" for query in ("owner=%00", "owner=")),
        "/v1/uploads?cursor=x",
        *(f"/diffusion/v1/result?request_id=x&wait={each}" for each in (-1, "nan", "inf", "x", "")),
        *(f"/diffusion/v1/result?request_id=x&inline={each}" for each in ("maybe", "2")),
        "/diffusion/v1/result",
    ],
)
async def test_a_value_that_makes_no_sense_is_a_bad_request(edge: Edge, url: str) -> None:
    async with await edge.client(scopes=tuple(Scope)) as alice:
        answer = await alice.get(url)
    assert refusal(answer) == (400, "invalid_request")


async def test_whoever_has_no_key_is_told_nothing_of_parameters(anyone: Client) -> None:
    assert (await anyone.get("/v1/jobs?statuss=1")).status_code == 401


@pytest.mark.parametrize("path", ["/health/live", "/health/ready"])
async def test_health_is_asked_with_any_query(anyone: Client, path: str) -> None:
    assert (await anyone.get(f"{path}?probe=7")).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/keys/a%00b"),
        ("PATCH", "/v1/keys/a%00b"),
        ("DELETE", "/v1/keys/a%00b"),
        ("POST", "/v1/keys/a%00b/rotate"),
        ("GET", "/v1/keys?owner=a%00b"),
        ("GET", "/v1/keys?cursor=a%00b"),
        ("GET", "/v1/jobs?endpoint=a%00b"),
        ("GET", "/v1/jobs?cursor=a%00b"),
        ("GET", "/v1/jobs/a%00b"),
        ("DELETE", "/v1/jobs/a%00b"),
        ("POST", "/v1/jobs/a%00b/cancel"),
        ("GET", "/v1/jobs/a%00b/callback"),
        ("GET", "/workflow/v1/result?request_id=a%00b"),
        ("DELETE", "/v1/uploads/a%00b"),
        ("GET", "/v1/uploads?cursor=a%00b"),
        ("GET", "/v1/files/a%00b/1/0.png?token=a%00b"),
    ],
)
async def test_nul_in_a_path_or_a_query_is_no_error_of_ours(
    edge: Edge, method: str, path: str
) -> None:
    async with await edge.client(scopes=tuple(Scope)) as client:
        answer = await client.request(method, path, json={} if method == "PATCH" else None)
    assert answer.status_code in {400, 403, 404}, answer.text


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800"])
async def test_nul_and_half_of_a_surrogate_pair_in_a_body_are_refused(
    client: Client, admin: Client, text: str
) -> None:
    load = {"class_type": "LoadImage", "inputs": {"image": text}}
    save = {"class_type": "SaveImage", "inputs": {"images": ["1", 0]}}
    headers = {"Content-Type": "application/json"}
    for caller, path, body in (
        (client, "/workflow/v1/generate", {"prompt": {"1": load, "2": save}}),
        (admin, "/v1/keys", {"owner": text}),
        (admin, "/v1/keys", {"owner": "a", "name": text}),
    ):
        content = json.dumps(body)  # in ASCII, which can say half of a surrogate pair
        answer = await caller.post(path, content=content, headers=headers)
        assert answer.status_code == 400, path


async def test_nul_in_a_header_is_no_error_of_ours(client: Client) -> None:
    headers = [("Idempotency-Key", b"a\x00b")]
    answer = await client.post("/diffusion/v1/generate", json=diffusion_body(), headers=headers)
    assert answer.status_code in {202, 400}
