"""Keys as the clients of other protocols send them, on a route made for this."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Response

from serve_app import error_responses
from serve_app.error_responses import ApiError
from serve_app.protocols.credentials import READ
from serve_app.protocols.registry import HttpProtocol, error_forms
from tests.support.edge import Client, Edge

ADDRESS = "http://darkroom.test"


@pytest.fixture
async def client(edge: Edge) -> AsyncGenerator[Client]:
    router = APIRouter()

    @router.get("/probe", dependencies=[Depends(READ)])
    async def probe() -> str:
        return "known"

    app = FastAPI()
    app.state.replica = edge.app.state.replica
    adapter = HttpProtocol(
        name="comfyui",
        routers=(router,),
        prefixes=("/probe",),
        error_form=plain,
    )
    error_responses.install(app, note=lambda _type: None, form_of=error_forms([adapter]))
    app.include_router(router)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url=ADDRESS) as client:
        yield client


def plain(error: ApiError) -> Response:
    return Response(f"it says: {error.message}", error.status)


def basic(key: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"anyone:{key}".encode()).decode()}


async def test_a_key_is_taken_as_bearer_as_password_in_the_query_and_in_a_header_of_its_own(
    edge: Edge, client: Client
) -> None:
    key = await edge.key()
    for request in (
        {"headers": {"Authorization": f"Bearer {key}"}},
        {"headers": basic(key)},
        {"params": {"token": key}},
        {"headers": {"X-API-Key": key}},
        # A proxy may need the password for itself.
        {"headers": {"X-API-Key": key} | basic("of the proxy")},
    ):
        assert (await client.get("/probe", **request)).status_code == 200, request


PATHS = (
    "/queue",
    "/api/queue",
    "/comfy/api/queue",
    "/sdapi/v1/samplers",
    "/v1/models",
    "/v1/models/default",
    "/api/v2/jobs",
    "/v1/jobs",
)
"""One of each protocol."""


async def test_every_protocol_takes_a_key_in_the_path(edge: Edge, anyone: Client) -> None:
    key = await edge.key()
    # SillyTavern sends the password of nobody along.
    for headers in ({}, {"Authorization": "Basic dW5kZWZpbmVk"}):
        for path in PATHS:
            answer = await anyone.get(f"/key/{key}{path}", headers=headers)
            assert answer.status_code == 200, path
            assert answer.headers["cache-control"] == "no-store", path
    for path in ("/key/dk_x_y/queue", "/key//queue", f"/key/{key}x/queue", f"/key/{key}/nothing"):
        assert (await anyone.get(path)).status_code in {401, 404}, path
    assert (await anyone.post(f"/key/{key}/sdapi/v1/samplers")).status_code == 405


async def test_a_name_in_a_path_with_a_key_may_have_slashes(edge: Edge, anyone: Client) -> None:
    key = await edge.key()
    path = f"/key/{key}/userdata/workflows%2Fa.json"
    assert (await anyone.post(path, content=b"{}")).json() == "workflows/a.json"
    assert (await anyone.get(path)).content == b"{}"


async def test_an_error_has_the_form_of_the_protocol_behind_the_key(anyone: Client) -> None:
    answer = await anyone.get("/key/dk_x_y/sdapi/v1/samplers")
    assert (answer.status_code, answer.json()["error"]) == (401, "unauthorized")


async def test_own_routes_take_a_key_in_a_header_of_its_own(edge: Edge, anyone: Client) -> None:
    headers = {"X-API-Key": await edge.key()}
    assert (await anyone.get("/v1/jobs", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Basic ???"}, {"Authorization": "Basic YTpi"}, basic(""), basic("ä")],
)
async def test_what_is_no_key_is_401_in_the_form_of_the_adapter(
    client: Client, headers: dict[str, str]
) -> None:
    answer = await client.get("/probe", headers=headers)
    assert answer.status_code == 401
    assert answer.text.startswith("it says: ")


async def test_a_page_of_another_origin_does_not_use_the_password_that_a_browser_knows(
    edge: Edge, client: Client
) -> None:
    headers = basic(await edge.key())
    assert (await client.get("/probe", headers=headers | {"Origin": ADDRESS})).status_code == 200
    odd = ("null", "http://[", "http://]x", "//", "darkroom.test", f"{ADDRESS}/", "http://a@b:c")
    for origin in ("https://evil.example", *odd):
        answer = await client.get("/probe", headers=headers | {"Origin": origin})
        assert answer.status_code == 401, origin


async def test_a_picture_or_script_of_another_page_does_not_use_the_password_either(
    edge: Edge, client: Client
) -> None:
    key = await edge.key()
    bearer = {"Authorization": f"Bearer {key}"}
    for site, mode, status in (
        ("same-origin", "cors", 200),
        ("none", "navigate", 200),
        ("cross-site", "navigate", 200),
        ("cross-site", "no-cors", 401),
        ("same-site", "no-cors", 401),
        ("cross-site", "websocket", 401),
    ):
        said = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode}
        assert (await client.get("/probe", headers=basic(key) | said)).status_code == status, said
        assert (await client.get("/probe", headers=bearer | said)).status_code == 200, said


async def test_own_routes_take_no_key_as_password_and_in_the_query(
    edge: Edge, anyone: Client
) -> None:
    key = await edge.key()
    in_query = await anyone.get("/v1/jobs", params={"token": key})
    as_password = await anyone.get("/v1/jobs", headers=basic(key))
    assert (in_query.status_code, as_password.status_code) == (401, 401)
