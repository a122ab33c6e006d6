"""The document, from the models of the events and the names of the bus.

AsyncAPI 3.0: https://www.asyncapi.com/docs/reference/specification/v3.0.0
"""

from __future__ import annotations

import json
from typing import Any

from docs.generate.asyncapi.examples import example_events
from docs.generate.asyncapi.schemas import CLOUD_EVENT, HEADERS, data_schemas, envelope, headers
from docs.generate.events import REFERENCE
from events.bus.streams import JOBS, REPUBLISH_FROM, job_subject
from events.cloud_events import CONTENT_TYPE, encode
from events.ids import PARTITIONS
from events.types import EVENT_TYPES, Event, JobEvent

Json = dict[str, Any]

_READER = "reader"
_REPLAY = f"$JS.API.DIRECT.GET.{JOBS}"
_JOB_EVENTS = {name: each for name, each in EVENT_TYPES.items() if issubclass(each, JobEvent)}

_INFO = """\
Every change of a job's state, as a CloudEvent in JSON. Subscribe to the channel `events` to follow
jobs as they happen, and use the channel `replay` to read stored events. For examples and rules see
`docs/events.md`. Events of callbacks are not published."""
_ACCOUNT = """\
User and password of the reader. The reader has a NATS account of its own, `READERS`. It may
subscribe to `events.>` and to its own inboxes, and request stored events, but cannot create a
consumer. `darkroom up` writes the address with user and password into `data/nats/reader.url`."""
_FOLLOW = """\
Each event after it was stored. NATS delivers it at most once. After an interruption a subscriber
replays the missing events, beginning after the highest `Nats-Sequence` that it has handled."""
_ASK = """\
Requests the first stored event at an offset or after it, by
[direct get](https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-31.md).
The answer is sent to the reply subject of the request. With `batch` there are several answers, and
the last one has the status 204."""
_ANSWERS = "The inbox of the client, which is the reply subject of the request."
_END = "No event is stored at the offset or after it: the answer has no payload, and this status."


def asyncapi_document() -> Json:
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Darkroom: events of jobs",
            "version": "1.0.0",
            "description": _INFO,
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "defaultContentType": CONTENT_TYPE,
        "servers": {"nats": _server()},
        "channels": _channels(),
        "operations": _operations(),
        "components": {
            "messages": {
                **{name: _event_message(each) for name, each in example_events().items()},
                "replay": _request_message(),
                "end": _end_message(),
            },
            "schemas": {CLOUD_EVENT: envelope(), HEADERS: headers(), **data_schemas(_JOB_EVENTS)},
            "securitySchemes": {_READER: {"type": "userPassword", "description": _ACCOUNT}},
        },
    }


def text() -> str:
    """Return the content of docs/asyncapi.json."""
    return json.dumps(asyncapi_document(), indent=2, ensure_ascii=False) + "\n"


def _server() -> Json:
    return {
        "host": "{host}:{port}",
        "protocol": "nats",
        "variables": {"host": {"default": "127.0.0.1"}, "port": {"default": "4222"}},
        "security": [_at("securitySchemes", _READER)],
    }


def _channels() -> Json:
    every_event = {name: _at("messages", name) for name in _JOB_EVENTS}
    return {
        "events": {
            "address": "events.{partition}.{job_id}",
            "description": _FOLLOW,
            "messages": every_event,
            "parameters": {
                "partition": {
                    "description": "Computed from the id of the job; `*` is every partition",
                    "enum": [str(number) for number in range(PARTITIONS)],
                },
                "job_id": {"description": "Id of the job; `*` is every job"},
            },
        },
        "replay": {"address": _REPLAY, "messages": {"replay": _at("messages", "replay")}},
        "answers": {
            "address": None,
            "description": _ANSWERS,
            "messages": {**every_event, "end": _at("messages", "end")},
        },
    }


def _operations() -> Json:
    """Return the operations of the service: it sends events and answers direct gets."""
    return {
        "publishEvent": {
            "action": "send",
            "channel": {"$ref": "#/channels/events"},
            "summary": "Publish each event after it was stored",
        },
        "replayEvents": {
            "action": "receive",
            "channel": {"$ref": "#/channels/replay"},
            "summary": "Answer with stored events",
            "description": _ASK,
            "reply": {"channel": {"$ref": "#/channels/answers"}},
        },
    }


def _event_message(example: Event) -> Json:
    data_type = type(example.data)
    type_is = {
        "properties": {
            "type": {"const": data_type.type_name},
            "data": {"$ref": REFERENCE.format(model=data_type.__name__)},
        }
    }
    return {
        "name": data_type.type_name,
        "title": data_type.__name__,
        "headers": {"$ref": REFERENCE.format(model=HEADERS)},
        "payload": {"allOf": [{"$ref": REFERENCE.format(model=CLOUD_EVENT)}, type_is]},
        "examples": [
            {"headers": _example_headers(example), "payload": json.loads(encode(example))}
        ],
    }


def _example_headers(event: Event) -> Json:
    return {
        "Nats-Stream": JOBS,
        "Nats-Subject": job_subject(event.job_id),
        "Nats-Sequence": str(event.position),
        "Nats-Time-Stamp": event.time.isoformat().replace("+00:00", "Z"),
        "Nats-Msg-Id": event.id,
    }


def _request_message() -> Json:
    return {
        "title": "Replay",
        "contentType": "application/json",
        "payload": {
            "type": "object",
            "required": ["seq", "next_by_subj"],
            "properties": {
                "seq": {"type": "integer", "minimum": 1, "description": "The offset to begin at"},
                "next_by_subj": {
                    "type": "string",
                    "description": f"`{REPUBLISH_FROM}`, or `jobs.*.` and the id of one job",
                },
                "batch": {
                    "type": "integer",
                    "minimum": 1,
                    "description": "The largest number of events",
                },
            },
        },
        "examples": [{"payload": {"seq": 43, "next_by_subj": REPUBLISH_FROM}}],
    }


def _end_message() -> Json:
    return {
        "title": "End",
        "description": _END,
        "headers": {"type": "object", "properties": {"Status": {"const": "404"}}},
    }


def _at(kind: str, name: str) -> Json:
    return {"$ref": f"#/components/{kind}/{name}"}
