"""Schemas of operators' kinds, and fields of a manifest that its schema does not have."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema.validators import validator_for

SCHEMA_FILES = {
    "RayCluster": "kuberay-raycluster-v1.json",
    "RayService": "kuberay-rayservice-v1.json",
    "Cluster": "cnpg-cluster-v1.json",
    "Certificate": "cert-manager-certificate-v1.json",
    "Issuer": "cert-manager-issuer-v1.json",
    "PodMonitor": "prometheus-podmonitor-v1.json",
    "PrometheusRule": "prometheus-prometheusrule-v1.json",
    "ScrapeConfig": "prometheus-scrapeconfig-v1alpha1.json",
}
"""Files by kind in the folder DARKROOM_SCHEMAS_DIR: `openAPIV3Schema` of each definition."""


@cache
def schema_of(kind: str) -> dict[str, Any]:
    """Return the schema of a kind. Skips the test if it is missing."""
    folder = os.environ.get("DARKROOM_SCHEMAS_DIR")
    if not folder:
        pytest.skip("DARKROOM_SCHEMAS_DIR is not set: schemas of operators are not at hand")
    path = Path(folder) / SCHEMA_FILES[kind]
    if not path.exists():
        pytest.skip(f"DARKROOM_SCHEMAS_DIR has no {path.name}")
    schema: dict[str, Any] = json.loads(path.read_text())
    return schema


def check(manifest: dict[str, Any]) -> None:
    """Check a manifest against the schema of its kind; an unknown field is an error too."""
    schema = schema_of(manifest["kind"])
    validate(manifest, schema)
    assert unknown_fields(manifest, schema) == []


def validate(manifest: dict[str, Any], schema: dict[str, Any]) -> None:
    """Validate a manifest without checking the schema itself, which would take seconds."""
    validator_for(schema)(schema).validate(manifest)


def unknown_fields(value: Any, schema: dict[str, Any], path: str = "") -> list[str]:
    """Return the paths of the fields that `schema` does not name.

    Kubernetes' structural schemas omit `additionalProperties`, and the API server drops unknown
    fields without an error. So a misspelt field passes validation and has no effect.
    """
    if isinstance(value, list):
        items = schema.get("items", {})
        return [
            found
            for index, item in enumerate(value)
            for found in unknown_fields(item, items, f"{path}[{index}]")
        ]
    if not isinstance(value, dict) or is_open(schema):
        return []
    known, rest = schema.get("properties", {}), schema.get("additionalProperties")
    unknown = []
    for name, member in value.items():
        member_schema = known.get(name, rest)
        if member_schema is None or member_schema is False:
            unknown.append(f"{path}.{name}")
        elif isinstance(member_schema, dict):
            unknown += unknown_fields(member, member_schema, f"{path}.{name}")
    return unknown


def is_open(schema: dict[str, Any]) -> bool:
    """Whether an object may have any fields: the schema says so, or names none."""
    return bool(
        schema.get("x-kubernetes-preserve-unknown-fields")
        or not (schema.keys() & {"properties", "additionalProperties"})
    )
