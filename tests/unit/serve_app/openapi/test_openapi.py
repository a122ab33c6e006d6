import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from events.store.records import Scope
from tests.support.edge import Edge, running_edge
from tests.support.generate_bodies import GENERATE_PATHS, body_for
from tests.unit.serve_app.openapi.conftest import operations

ERROR_STATUSES = {"400", "401", "403", "404", "408", "409", "413", "415", "429", "500", "503"}


@pytest.mark.parametrize("path", GENERATE_PATHS)
def test_a_generate_path_is_described_whole(document: dict[str, Any], path: str) -> None:
    operation = document["paths"][path]["post"]
    assert set(operation["responses"]) == {"202", *ERROR_STATUSES}
    assert "Location" in operation["responses"]["202"]["headers"]
    assert {each["name"] for each in operation["parameters"]} == {
        "endpoint",
        "callback_url",
        "callback_events",
        "alone",
        "preview",
        "image_format",
        "image_quality",
        "Idempotency-Key",
    }
    content = operation["requestBody"]["content"]["application/json"]
    validator = Draft202012Validator({**content["schema"], "components": document["components"]})
    validator.validate(content["example"])
    validator.validate(body_for(GENERATE_PATHS[path]))


def test_the_callback_has_the_result_as_its_body(document: dict[str, Any]) -> None:
    result, body = (
        document["components"]["schemas"][n] for n in ("ResultResponse", "CallbackBody")
    )
    assert body["properties"].items() >= result["properties"].items()
    assert body["properties"].keys() - result["properties"].keys() == {"event", "index"}
    assert body["required"] == result["required"]
    for path in GENERATE_PATHS:
        [callback] = document["paths"][path]["post"]["callbacks"].values()
        receiver = callback["{$request.query.callback_url}"]["post"]
        schema = receiver["requestBody"]["content"]["application/json"]["schema"]
        assert schema == {"$ref": "#/components/schemas/CallbackBody"}
        assert "webhook-id" in {each["name"] for each in receiver["parameters"]}


def test_every_error_has_the_one_shape_and_422_is_none_of_them(document: dict[str, Any]) -> None:
    error = {"$ref": "#/components/schemas/ErrorBody"}
    for _, _, operation in operations(document):
        for status, response in operation["responses"].items():
            assert status != "422"
            if status >= "400":
                assert response["content"]["application/json"]["schema"] == error


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    def references(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                yield value["$ref"]
            for each in value.values():
                yield from references(each)
        elif isinstance(value, list):
            for each in value:
                yield from references(each)

    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(references(document)) <= known


def test_routes_with_a_key_say_so(document: dict[str, Any]) -> None:
    for path, _, operation in operations(document):
        is_open = path.startswith(("/files/", "/health/"))
        assert operation.get("security", []) == ([] if is_open else [{"bearer": []}])


CHECKS = [
    schemathesis.checks.not_a_server_error,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
]


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """Drives the edge from a test that is not asynchronous itself."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def running(tmp_path: Path, runner: asyncio.Runner) -> Iterator[tuple[Edge, httpx.AsyncClient]]:
    stack = AsyncExitStack()
    # A stream of an owner has no end of its own.
    edge = runner.run(stack.enter_async_context(running_edge(tmp_path, stream_max_s=0.01)))
    client = runner.run(edge.client(scopes=tuple(Scope)))
    yield edge, client
    runner.run(client.aclose())
    runner.run(stack.aclose())


def test_requests_drawn_from_the_document_are_answered_as_it_says(
    runner: asyncio.Runner, running: tuple[Edge, httpx.AsyncClient]
) -> None:
    edge, client = running
    document = schemathesis.openapi.from_dict(edge.app.openapi())
    cases = [
        each.ok().as_strategy(generation_mode=mode)
        for each in document.get_all_operations()
        for mode in schemathesis.GenerationMode
    ]

    @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.one_of(cases))
    def conforms(case: schemathesis.Case) -> None:
        drawn = case.as_transport_kwargs(base_url="http://darkroom.test")
        request = requests.Request(**drawn).prepare()
        # With a key that works: what is drawn for it would end nearly every request at 401.
        headers = {**request.headers, "Authorization": client.headers["Authorization"]}
        sent = client.request(request.method, request.url, headers=headers, content=request.body)
        case.validate_response(runner.run(sent), checks=CHECKS)

    conforms()
