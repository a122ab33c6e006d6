"""The document as generators of clients read it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from events.store.records import Endpoint, Scope
from serve_app.openapi.request_bodies import EXAMPLE_CHECKPOINT
from tests.support.edge import Edge
from tests.support.generate_bodies import GENERATE_PATHS, diffusion_body
from tests.unit.serve_app.openapi.conftest import operations

ROOT = Path(__file__).parents[4]


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


def test_operation_ids_are_short_and_unique(document: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert {"generateWorkflow", "generateDiffusionTwin", "showJob", "listKeys"} <= set(ids)
    assert [id for id in ids if not re.fullmatch(r"[a-z]+([A-Z][a-z]+)*", id)] == []
    assert [id for id in ids if len(id) > 30] == []


def test_ids_of_callbacks_are_unique_too(document: dict[str, Any]) -> None:
    ids = [
        each["operationId"] for each in values(document) if isinstance(each.get("operationId"), str)
    ]
    assert len(set(ids)) == len(ids)
    assert "generateWorkflowCompleted" in ids


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


async def test_every_example_of_a_body_is_accepted(edge: Edge, tmp_path: Path) -> None:
    """With the checkpoint that is included."""
    assert (ROOT / "models" / "checkpoints" / EXAMPLE_CHECKPOINT).is_file()
    (tmp_path / "models" / "checkpoints" / EXAMPLE_CHECKPOINT).touch()
    await edge.services.endpoints.put(Endpoint("made"))
    async with await edge.client(scopes=[Scope.ADMIN]) as admin:
        submitted = await admin.post("/diffusion/v1/generate", json=diffusion_body())
        ids = {
            "/v1/endpoints/{id}": "made",
            "/v1/keys/{id}": (await edge.key()).split("_")[1],
            "/v1/admin/jobs/{id}/quarantine": submitted.json()["request_id"],
        }
        statuses = {}
        for path, method, operation in operations(edge.app.openapi()):
            content = operation.get("requestBody", {}).get("content", {})
            if "application/json" in content:
                url = path.replace("{id}", ids.get(path, ""))
                body = content["application/json"]["example"]
                answer = await admin.request(method, url, json=body)
                statuses[path] = answer.status_code
    assert set(statuses) >= {*GENERATE_PATHS, *ids, "/v1/keys", "/v1/endpoints"}
    assert {path: status for path, status in statuses.items() if status >= 300} == {}


def test_it_names_no_section_of_a_document_that_its_reader_has_not(
    document: dict[str, Any],
) -> None:
    assert re.findall(r"service document|section \d", json.dumps(document)) == []


def test_no_example_has_an_end_that_is_past(document: dict[str, Any]) -> None:
    ends = [
        str(each["expires_at"])
        for each in values(document)
        if isinstance(each.get("expires_at"), str)
    ]
    assert ends
    assert all(datetime.fromisoformat(end) > datetime.now(UTC) for end in ends)
