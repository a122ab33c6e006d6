"""How many requests are left, in the headers of each answer."""

from __future__ import annotations

from pathlib import Path

from tests.support.edge import Edge, running_edge


async def test_each_answer_says_what_is_left(tmp_path: Path) -> None:
    limits = {"key_rate_per_s": 0.01, "key_burst": 2, "owner_rate_per_s": 0}
    async with (
        running_edge(tmp_path, http_replicas=1, **limits) as edge,
        await edge.client() as alice,
    ):
        answers = [await alice.get("/v1/usage") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert {answer.headers["RateLimit-Policy"] for answer in answers} == {'"key";q=2;w=200'}
    found = [answer.headers["RateLimit"].rpartition(";t=")[0] for answer in answers]
    assert found == ['"key";r=1', '"key";r=0', '"key";r=0']


async def test_an_answer_without_a_key_or_without_limits_has_none(edge: Edge) -> None:
    async with edge.client_with(None) as anyone:
        for path in ("/health/live", "/v1/usage"):
            assert "RateLimit" not in (await anyone.get(path)).headers
