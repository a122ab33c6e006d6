"""What HTTP asks of every route: methods, slashes, compression."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from events.store.records import Scope
from tests.support.edge import Edge, running_edge
from tests.support.generate_bodies import diffusion_body


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
    edge: Edge, method: str, path: str, allowed: str
) -> None:
    async with await edge.client() as alice:
        answer = await alice.request(method, path)
    assert (answer.status_code, answer.headers["Allow"]) == (405, allowed)
    assert answer.json()["error"]["type"] == "method_not_allowed"


@pytest.mark.parametrize("path", ["/health/live", "/health/ready"])
async def test_health_answers_head(edge: Edge, path: str) -> None:
    async with edge.client_with(None) as balancer:
        assert (await balancer.head(path)).status_code == 200


async def test_a_slash_behind_a_path_changes_nothing(edge: Edge) -> None:
    async with await edge.client() as alice:
        answer = await alice.post("/diffusion/v1/generate/", json=diffusion_body())
        assert answer.status_code == 202
        assert answer.headers["Location"].startswith("/diffusion/v1/result?")
        id = answer.json()["request_id"]
        for path in ("/v1/jobs/", f"/v1/jobs/{id}/", f"/diffusion/v1/result/?request_id={id}"):
            assert (await alice.get(path)).status_code == 200
        assert (await alice.get("/v1/jobs//")).status_code == 404


@pytest.mark.parametrize(("encoding", "expected"), [("gzip", "gzip"), ("identity", None)])
async def test_long_json_is_compressed_for_who_takes_it(
    edge: Edge, encoding: str, expected: str | None
) -> None:
    async with await edge.client() as alice:
        answer: httpx.Response = await alice.get(
            "/v1/object_info", headers={"Accept-Encoding": encoding}
        )
        assert answer.headers.get("Content-Encoding") == expected
        assert "KSampler" in answer.json()
        short = await alice.get("/v1/usage", headers={"Accept-Encoding": encoding})
    assert "Content-Encoding" not in short.headers


@pytest.mark.parametrize("origin", ["https://app.example", "https://other.example"])
async def test_pages_of_the_origins_in_the_settings_may_call_it(
    tmp_path: Path, origin: str
) -> None:
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    async with (
        running_edge(tmp_path, cors_origins="https://app.example") as edge,
        edge.client_with(None) as page,
    ):
        preflight = await page.options("/diffusion/v1/generate", headers=asked)
        refused = await page.get("/v1/jobs", headers={"Origin": origin})
    allowed = origin == "https://app.example"
    assert preflight.status_code == (200 if allowed else 400)
    for answer in (preflight, refused):
        given = answer.headers.get("Access-Control-Allow-Origin")
        assert given == (origin if allowed else None)
        assert "Access-Control-Allow-Credentials" not in answer.headers


async def test_a_page_may_go_on_with_a_stream_and_with_a_file(tmp_path: Path) -> None:
    asked = {
        "Origin": "https://app.example",
        "Access-Control-Request-Method": "GET",
        "Access-Control-Request-Headers": "authorization,last-event-id,range",
    }
    async with (
        running_edge(tmp_path, cors_origins="https://app.example") as edge,
        edge.client_with(None) as page,
    ):
        assert (await page.options("/v1/events", headers=asked)).status_code == 200


async def test_no_page_may_call_it_unless_it_is_set_up(edge: Edge) -> None:
    asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    async with edge.client_with(None) as page:
        answer = await page.options("/diffusion/v1/generate", headers=asked)
    assert answer.status_code == 405
    assert "Access-Control-Allow-Origin" not in answer.headers


class TestResultByAnyPath:
    async def test_the_other_flavours_path_says_where_it_is(self, edge: Edge) -> None:
        async with await edge.client() as alice:
            submitted = await alice.post("/diffusion/v1/generate", json=diffusion_body())
            id = submitted.json()["request_id"]
            answer = await alice.get("/workflow/v1/result", params={"request_id": id})
            assert answer.status_code == 404
            assert "/diffusion/v1/result" in answer.json()["error"]["message"]
            found = await alice.get(f"/v1/jobs/{id}/result")
            by_flavour = await alice.get("/diffusion/v1/result", params={"request_id": id})
            assert (found.status_code, found.json()) == (200, by_flavour.json())

    async def test_another_owners_job_is_not_told_from_none(self, edge: Edge) -> None:
        async with await edge.client("bob") as bob, await edge.client("alice") as alice:
            submitted = await alice.post("/diffusion/v1/generate", json=diffusion_body())
            id = submitted.json()["request_id"]
            answers = [
                await bob.get("/workflow/v1/result", params={"request_id": each})
                for each in (id, "0199a1b2-0000-7000-8000-000000000000")
            ]
            assert [each.status_code for each in answers] == [404, 404]
            assert answers[0].json() == answers[1].json()

    async def test_a_cancelled_job_is_told_from_a_failed_one_in_the_list(self, edge: Edge) -> None:
        async with await edge.client(scopes=[Scope.ADMIN]) as alice:
            submitted = await alice.post("/diffusion/v1/generate", json=diffusion_body())
            await edge.project()
            [waiting] = (await alice.get("/v1/jobs")).json()["jobs"]
            assert (waiting["state"], waiting.get("error")) == ("queued", None)
            await alice.post(f"/v1/jobs/{submitted.json()['request_id']}/cancel")
            await edge.project()
            [job] = (await alice.get("/v1/jobs")).json()["jobs"]
            assert (job["status"], job["state"]) == (2, "cancelled")
            assert job["error"] == {"code": "cancelled", "retryable": False}
            assert job["message"] == "The job was cancelled."
