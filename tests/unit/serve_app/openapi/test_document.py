"""The document as generators of clients read it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
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

from events.store.records import Endpoint, Scope
from serve_app.openapi.document import EXAMPLE_CHECKPOINT
from tests.support.edge import Client, Edge, running_edge
from tests.support.generate_bodies import GENERATE_PATHS, body_for, diffusion_body

ROOT = Path(__file__).parents[4]


@pytest.fixture
def document(edge: Edge) -> dict[str, Any]:
    return edge.app.openapi()


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Path, method and operation of each."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def values(node: Any) -> Iterator[dict[str, Any]]:
    """Every object in the document."""
    if isinstance(node, dict):
        yield node
        for each in node.values():
            yield from values(each)
    elif isinstance(node, list):
        for each in node:
            yield from values(each)


def texts(document: dict[str, Any], name: str) -> list[str]:
    return [each[name] for each in values(document) if isinstance(each.get(name), str)]


def test_operation_ids_are_short_and_with_those_of_callbacks_unique(
    document: dict[str, Any],
) -> None:
    ids = texts(document, "operationId")
    assert len(set(ids)) == len(ids)
    assert {"generateWorkflow", "showJob", "listKeys", "generateWorkflowCompleted"} <= set(ids)
    own = [operation["operationId"] for _, _, operation in operations(document)]
    assert [id for id in own if not re.fullmatch(r"[a-z]+([A-Z][a-z]+)*", id)] == []
    assert [id for id in own if len(id) > 30] == []


def test_twins_say_whose_they_are(document: dict[str, Any]) -> None:
    by_id = {each["operationId"]: each for _, _, each in operations(document)}
    twins = {id: each["x-twin-of"] for id, each in by_id.items() if "x-twin-of" in each}
    assert twins == {
        "generateWorkflowTwin": "generateWorkflow",
        "generateDiffusionTwin": "generateDiffusion",
        "workflowResultTwin": "workflowResult",
        "diffusionResultTwin": "diffusionResult",
    }
    for twin in twins:
        assert "The same as `" in by_id[twin]["description"]


def test_an_enum_has_plain_values(document: dict[str, Any]) -> None:
    """Generators leave out an operation with any other."""
    found = [each["enum"] for each in values(document) if isinstance(each.get("enum"), list)]
    assert [enum for enum in found if not all(isinstance(v, str | int | float) for v in enum)] == []
    schema = document["components"]["schemas"]["DiffusionRequest"]["properties"]
    assert schema["comments"]["maxProperties"] == 0


def test_bodies_are_json_or_a_form(document: dict[str, Any]) -> None:
    """A generator leaves out an answer or a request of any other media type."""
    for _, _, operation in operations(document):
        parts = [*operation["responses"].values(), operation.get("requestBody", {})]
        types = {each for part in parts for each in part.get("content", {})}
        assert types <= {"application/json", "multipart/form-data"}


def test_a_request_body_is_a_schema_of_its_own(document: dict[str, Any]) -> None:
    """It would get the long name of its operation otherwise, once for each twin."""
    for path, _, operation in operations(document):
        content = operation.get("requestBody", {}).get("content", {})
        for media_type, body in content.items():
            assert ("$ref" in body["schema"]) == (media_type == "application/json"), path


async def test_every_example_of_a_body_is_accepted(
    edge: Edge, admin: Client, tmp_path: Path
) -> None:
    """With the checkpoint that is included."""
    assert (ROOT / "models" / "checkpoints" / EXAMPLE_CHECKPOINT).is_file()
    (tmp_path / "models" / "checkpoints" / EXAMPLE_CHECKPOINT).touch()
    await edge.services.endpoints.put(Endpoint("made"))
    submitted = await admin.post("/diffusion/v1/generate", json=diffusion_body())
    ids = {
        "/v1/endpoints/{id}": "made",
        "/v1/keys/{id}": (await edge.key()).split("_")[1],
        "/v1/admin/jobs/{id}/quarantine": submitted.json()["request_id"],
    }
    statuses, components = {}, edge.app.openapi()["components"]
    for path, method, operation in operations(edge.app.openapi()):
        content = operation.get("requestBody", {}).get("content", {})
        if "application/json" in content:
            url = path.replace("{id}", ids.get(path, "")).replace("{name}", "portrait")
            body, schema = (content["application/json"][name] for name in ("example", "schema"))
            Draft202012Validator({**schema, "components": components}).validate(body)
            answer = await admin.request(method, url, json=body)
            statuses[path] = answer.status_code
    assert set(statuses) >= {*GENERATE_PATHS, *ids, "/v1/keys", "/v1/endpoints"}
    assert {path: status for path, status in statuses.items() if status >= 300} == {}


def test_it_names_no_section_of_a_document_that_its_reader_has_not(
    document: dict[str, Any],
) -> None:
    assert re.findall(r"service document|section \d", json.dumps(document)) == []


def test_no_example_has_an_end_that_is_past(document: dict[str, Any]) -> None:
    ends = texts(document, "expires_at")
    assert ends
    assert all(datetime.fromisoformat(end) > datetime.now(UTC) for end in ends)


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
    schemas = document["components"]["schemas"]
    result, body = schemas["ResultResponse"], schemas["CallbackBody"]
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
    for path, _, operation in operations(document):
        assert "422" not in operation["responses"], path
        for status, response in operation["responses"].items():
            if status >= "400":
                assert response["content"]["application/json"]["schema"] == error


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(texts(document, "$ref")) <= known


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
