"""The query of a request: a parameter that the route does not take, or that is there twice."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from events.store.records import Scope
from tests.support.edge import Edge
from tests.support.generate_bodies import GENERATE_PATHS, body_for

ADDRESS = "http%3A%2F%2F127.0.0.1%3A9%2F"


def errors_of(answer: httpx.Response) -> list[tuple[str, str, str]]:
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request")
    fields = answer.json()["error"]["extra_info"]["fields"]
    return [(each["field"], each["type"], each["message"]) for each in fields]


@pytest.mark.parametrize("path", GENERATE_PATHS)
async def test_a_mistyped_parameter_is_refused_and_the_nearest_named(edge: Edge, path: str) -> None:
    async with await edge.client() as alice:
        url, body = f"{path}?calback_url={ADDRESS}", body_for(GENERATE_PATHS[path])
        [(field, type, message)] = errors_of(await alice.post(url, json=body))
    assert (field, type) == ("calback_url", "unknown_parameter")
    assert message == "there is no such parameter; did you mean callback_url?"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("/v1/jobs?x=1", "this call takes status, flavour, endpoint, results, limit, cursor"),
        ("/v1/usage?x=1", "this call takes none"),
        ("/v1/jobs?statuss=1", "did you mean status?"),
        ("/v1/jobs?limit=1&limit=2", "give it once"),
        ("/diffusion/v1/result?request_id=a&request_id=b", "give it once"),
        ("/diffusion/v1/result?request_id=a&request_id=a", "give it once"),
        ("/v1/jobs?&=1", "this call takes status, flavour, endpoint, results, limit, cursor"),
        (f"/v1/jobs?{'statu' * 3000}=1", "this call takes"),
    ],
)
async def test_what_is_wrong_with_a_parameter_is_told(edge: Edge, url: str, expected: str) -> None:
    async with await edge.client(scopes=tuple(Scope)) as alice:
        [(_, _, message)] = errors_of(await alice.get(url))
    assert expected in message


async def test_of_very_many_some_are_told(edge: Edge) -> None:
    query = "&".join(f"x{number}=1" for number in range(5000))
    async with await edge.client() as alice:
        assert len(errors_of(await alice.get(f"/v1/jobs?{query}"))) == 50


async def test_a_parameter_that_is_a_list_may_be_repeated(edge: Edge) -> None:
    query = "dead_letter=quarantined&dead_letter=undispatchable"
    async with await edge.client(scopes=[Scope.ADMIN]) as admin:
        assert (await admin.get(f"/v1/admin/jobs?{query}")).status_code == 200


async def test_whoever_has_no_key_is_told_nothing_of_parameters(edge: Edge) -> None:
    async with edge.client_with(None) as anyone:
        assert (await anyone.get("/v1/jobs?statuss=1")).status_code == 401


async def test_a_parameter_without_a_value_is_the_parameter(edge: Edge) -> None:
    parameters: dict[str, Any] = {"callback_url": ""}
    async with await edge.client() as alice:
        answer = await alice.post(
            "/diffusion/v1/generate",
            params=parameters,
            json=body_for(GENERATE_PATHS["/diffusion/v1/generate"]),
        )
    assert answer.status_code == 400


@pytest.mark.parametrize("path", ["/health/live", "/health/ready"])
async def test_health_is_asked_with_any_query(edge: Edge, path: str) -> None:
    async with edge.client_with(None) as balancer:
        assert (await balancer.get(f"{path}?probe=7")).status_code == 200
