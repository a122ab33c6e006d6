"""Routes for frequent calls, which avoid the cost of FastAPI's dependency resolution.

FastAPI resolves dependencies and parameters again for every request. A direct route resolves them
once, when the route is created. A request then costs one look-up per parameter and one validation.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.params import Depends, Header, Query
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError, create_model
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

Endpoint = Callable[..., Awaitable[Response]]
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class DirectRoute(APIRoute):
    """A route with the same documentation, matching and answers as any other route.

    The route may be in the application's own list of routes, so that no router is searched. The
    route function may have these parameters: the request, dependencies that take only the request,
    query parameters and headers. Each query parameter and header has one value. The function must
    return a response, and its router must have no dependencies.
    """

    _answer: Handler

    def get_route_handler(self) -> Handler:
        self._answer = _handler(self.endpoint)
        return self._answer

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Reject most paths without a regular expression."""
        return super().matches(scope) if scope["path"].endswith(self.path) else (Match.NONE, {})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)
            return
        response = await self._answer(Request(scope, receive, send))
        await response(scope, receive, send)


def _handler(endpoint: Endpoint) -> Handler:
    arguments = _Arguments(endpoint)

    async def handle(request: Request) -> Response:
        return await endpoint(**await arguments.of(request))

    return handle


class _Arguments:
    """Computes the arguments of a route function from a request."""

    def __init__(self, endpoint: Endpoint) -> None:
        hints = get_type_hints(endpoint, include_extras=True)
        self._request_names: list[str] = []
        self._dependencies: list[tuple[str, Callable[[Request], Any], bool]] = []
        """The parameter's name, the dependency function, and whether its result is awaited."""
        self._sources: dict[str, str] = {}
        """The source of each parameter, "query" or "header", by the parameter's alias."""
        fields: dict[str, Any] = {}
        for name, parameter in inspect.signature(endpoint).parameters.items():
            hint = hints[name]
            match _marker(hint):
                case Depends(dependency=function) if function is not None:
                    is_async = inspect.iscoroutinefunction(function) or (
                        inspect.iscoroutinefunction(type(function).__call__)
                    )
                    self._dependencies.append((name, function, is_async))
                case Header(alias=None):
                    raise TypeError(f"{endpoint.__name__}: the header {name} needs its own name")
                case Query() | Header() as marker:
                    self._sources[marker.alias or name] = marker.in_.value
                    is_required = parameter.default is parameter.empty
                    fields[name] = (hint, ... if is_required else parameter.default)
                case _ if hint is Request:
                    self._request_names.append(name)
                case _:
                    raise TypeError(f"{endpoint.__name__}: a direct route cannot give it {name}")
        self._model: type[BaseModel] = create_model("Parameters", **fields)

    async def of(self, request: Request) -> dict[str, Any]:
        """Return the arguments. Raises the errors of dependencies, then RequestValidationError."""
        arguments: dict[str, Any] = dict.fromkeys(self._request_names, request)
        for name, function, is_async in self._dependencies:
            given = function(request)
            arguments[name] = await given if is_async else given
        return arguments | vars(self._parameters(request))

    def _parameters(self, request: Request) -> BaseModel:
        given = {}
        for alias, source in self._sources.items():
            if source == "header":
                value = request.headers.get(alias)
            else:
                value = request.query_params.get(alias)
            if value is not None:
                given[alias] = value
        try:
            return self._model.model_validate(given)
        except ValidationError as error:
            found = error.errors(include_url=False)
            sources = self._sources
            errors = [
                {**each, "loc": (sources[str(each["loc"][0])], *each["loc"])} for each in found
            ]
            raise RequestValidationError(errors) from error


def _marker(hint: Any) -> Any:
    """Return the FastAPI marker in an annotation (Depends, Query or Header), or None."""
    metadata = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((each for each in metadata if isinstance(each, Depends | Query | Header)), None)
