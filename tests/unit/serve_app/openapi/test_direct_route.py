from collections.abc import Callable
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from serve_app.routes.direct_route import DirectRoute


async def caller(request: Request) -> str:
    if "authorization" not in request.headers:
        raise PermissionError
    return request.headers["authorization"]


async def nameless(token: Annotated[str, Header()]) -> Response:
    return Response(token)


async def with_a_body(body: dict[str, Any]) -> Response:
    return JSONResponse(body)


async def endpoint(
    request: Request,
    key: Annotated[str, Depends(caller)],
    id: Annotated[str, Query(description="an id")],
    *,
    alone: Annotated[bool, Query()] = False,
    wait: Annotated[float, Query(ge=0, allow_inf_nan=False)] = 0,
    token: Annotated[str | None, Header(alias="X-Token", min_length=2, pattern="^[a-z]+$")] = None,
) -> Response:
    """Answers what it is given."""
    given = {"path": request.url.path, "key": key, "id": id, "alone": alone}
    return JSONResponse({**given, "wait": wait, "token": token})


def app_with(route_class: type[APIRoute]) -> FastAPI:
    async def refused(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        fields = [{name: each[name] for name in ("type", "loc", "msg")} for each in error.errors()]
        return JSONResponse(fields, 400)

    async def unknown(_request: Request, _error: Exception) -> Response:
        return JSONResponse("who?", 401)

    router = APIRouter(route_class=route_class)
    router.add_api_route("/a", endpoint, response_model=None)
    app = FastAPI()
    if route_class is DirectRoute:
        app.router.routes += router.routes
    else:
        app.include_router(router)
    app.add_exception_handler(RequestValidationError, refused)
    app.add_exception_handler(PermissionError, unknown)
    return app


async def answer_of(
    route_class: type[APIRoute], query: str, method: str = "GET", **headers: str
) -> httpx.Response:
    transport = httpx.ASGITransport(app_with(route_class))
    async with httpx.AsyncClient(transport=transport, base_url="http://a") as client:
        return await client.request(method, f"/a?{query}", headers=headers)


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("id=1", {}),
        ("id=1&alone=true&wait=2.5", {"X-Token": "abc"}),
        ("id=1&id=2&wait=1&wait=3", {}),
        ("id=", {}),
        ("id=%C3%A9+%2B&more=1", {"x-token": "abc"}),
        ("", {}),
        ("alone=perhaps&wait=-1", {"X-Token": "A"}),
        ("id=1&wait=nan", {}),
        ("id=1&wait=", {"X-Token": ""}),
        ("", {"Authorization": ""}),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
async def test_a_direct_route_answers_as_an_ordinary_one(
    query: str, headers: dict[str, str], method: str
) -> None:
    headers = {"Authorization": "me", **headers}
    direct = await answer_of(DirectRoute, query, method, **headers)
    ordinary = await answer_of(APIRoute, query, method, **headers)
    assert (direct.status_code, direct.content) == (ordinary.status_code, ordinary.content)
    assert direct.headers == ordinary.headers


async def test_its_dependencies_come_before_its_parameters() -> None:
    assert (await answer_of(DirectRoute, "wait=-1")).status_code == 401


def test_it_is_documented_as_an_ordinary_one() -> None:
    assert app_with(DirectRoute).openapi() == app_with(APIRoute).openapi()


@pytest.mark.parametrize(("refused", "parameter"), [(with_a_body, "body"), (nameless, "token")])
def test_an_endpoint_with_a_body_or_a_nameless_header_is_refused_as_it_is_made(
    refused: Callable[..., Any], parameter: str
) -> None:
    router = APIRouter(route_class=DirectRoute)
    with pytest.raises(TypeError, match=parameter):
        router.add_api_route("/a", refused, methods=["POST"], response_model=None)
