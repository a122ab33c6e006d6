"""The AsyncAPI document: valid, as it is checked in, and true of what is sent."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from docs.generate.asyncapi.__main__ import DOCUMENT
from docs.generate.asyncapi.document import asyncapi_document, text
from events.bus.streams import event_subject, job_subject
from events.ids import new_id
from events.types import EVENT_TYPES, JobEvent

GOLDEN = Path(__file__).parents[2] / "golden"
STORED = sorted((GOLDEN / "events").rglob("darkroom.job.*.json"))


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return asyncapi_document()


def is_valid(document: dict[str, Any], event: dict[str, Any]) -> bool:
    schema = document["components"]["messages"][event["type"]]["payload"]
    rules = {**schema, "components": document["components"]}
    return bool(jsonschema.Draft7Validator(rules).is_valid(event))


def test_what_is_checked_in_is_current() -> None:
    assert DOCUMENT.read_text() == text(), "run `make asyncapi`"


def test_it_is_an_asyncapi_3_document(document: dict[str, Any]) -> None:
    rules = json.loads(gzip.decompress((GOLDEN / "asyncapi" / "3.0.0.json.gz").read_bytes()))
    jsonschema.Draft7Validator(rules).validate(document)


def test_it_has_every_event_of_a_job_with_an_example(document: dict[str, Any]) -> None:
    types = {name for name, each in EVENT_TYPES.items() if issubclass(each, JobEvent)}
    for channel in ("events", "answers"):
        assert set(document["channels"][channel]["messages"]) - {"end"} == types
    for name in types:
        assert document["components"]["messages"][name]["examples"]


def test_examples_are_what_the_document_says(document: dict[str, Any]) -> None:
    schemas = {"components": document["components"]}
    for message in document["components"]["messages"].values():
        for example in message.get("examples", ()):
            for part, value in example.items():
                jsonschema.Draft7Validator({**message[part], **schemas}).validate(value)


def test_what_was_ever_stored_is_what_the_document_says(document: dict[str, Any]) -> None:
    refused = [file for file in STORED if not is_valid(document, json.loads(file.read_bytes()))]
    assert refused == []


def test_its_addresses_are_those_of_the_bus(document: dict[str, Any]) -> None:
    channel, job_id = document["channels"]["events"], new_id()
    _, partition, _ = event_subject(job_id).split(".")
    address = channel["address"].replace("{partition}", partition).replace("{job_id}", job_id)
    assert address == event_subject(job_id)
    assert partition in channel["parameters"]["partition"]["enum"]
    example = document["components"]["messages"]["darkroom.job.started.v1"]["examples"][0]
    assert example["headers"]["Nats-Subject"] == job_subject(example["payload"]["subject"])
