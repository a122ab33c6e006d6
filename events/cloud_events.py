"""The wire form of events: CloudEvents 1.0, JSON event format, structured mode.

https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md

Golden files in `tests/golden/events/` have the expected bytes; `released/` has those of each
release.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from events.log import StoredEvent
from events.types import EVENT_TYPES, Broken, Event, EventData, Unknown

CONTENT_TYPE = "application/cloudevents+json"
SOURCE = "/darkroom"

_NEW_NAMES = {"enum", "literal_error"}
"""Pydantic's error types for a value that is no member of an enumeration or a literal."""
_NO_TIME = datetime.fromtimestamp(0, UTC)


class MalformedEvent(ValueError):
    """The bytes are not an event of Darkroom."""


class _Envelope(BaseModel):
    # Errors are logged, and must not contain prompts.
    model_config = ConfigDict(hide_input_in_errors=True)

    specversion: str = "1.0"
    id: str
    source: str = SOURCE
    type: str
    subject: str
    time: AwareDatetime
    sequence: str
    datacontenttype: str = "application/json"
    traceparent: str | None = None
    data: dict[str, Any] = Field(default_factory=dict)


def encode(event: Event, *, data: Mapping[str, Any] | None = None) -> bytes:
    """Encode an event.

    `sequence`, a CloudEvents extension, is padded with zeros, so that it sorts as text. `data`
    replaces the data of the event, for readers who may not see all of them.
    """
    traceparent = {} if event.traceparent is None else {"traceparent": event.traceparent}
    envelope = {
        "specversion": "1.0",
        "id": event.id,
        "source": SOURCE,
        "type": event.data.type_name,
        "subject": event.job_id,
        "time": event.time,
        "sequence": f"{event.version:010d}",
        "datacontenttype": "application/json",
        **traceparent,
        "data": event.data if data is None else data,
    }
    return to_json(envelope, exclude_none=True, inf_nan_mode="null")


def decode(payload: bytes, *, position: int = 0) -> Event:
    """Decode an event. Its data are `Unknown` if a later version wrote a new type or a new name.

    Raises MalformedEvent.
    """
    try:
        envelope = _Envelope.model_validate_json(payload)
        data = _data_of(envelope)
        version = int(envelope.sequence)
    except (ValidationError, ValueError) as error:
        raise MalformedEvent(str(error)) from error
    return Event(
        id=envelope.id,
        job_id=envelope.subject,
        version=version,
        time=envelope.time,
        data=data,
        traceparent=envelope.traceparent,
        position=position,
        size_bytes=len(payload),
    )


def _data_of(envelope: _Envelope) -> EventData:
    data_type = EVENT_TYPES.get(envelope.type)
    if data_type is None:
        return Unknown(original_type=envelope.type)
    try:
        return data_type.model_validate(envelope.data)
    except ValidationError as error:
        if all(each["type"] in _NEW_NAMES for each in error.errors(include_input=False)):
            return Unknown(original_type=envelope.type)
        raise


def decode_stored(payload: bytes, *, job_id: str, position: int) -> Event:
    """Decode the message at `position`. If the message is no event, the data are `Broken`."""
    try:
        return decode(payload, position=position)
    except MalformedEvent as error:
        return Event(
            id="",
            job_id=job_id,
            version=0,
            time=_NO_TIME,
            data=Broken(why=str(error)),
            position=position,
            size_bytes=len(payload),
        )


def decode_all(stored: Iterable[StoredEvent], *, job_id: str) -> list[Event]:
    """Decode all stored events of a job; see `decode_stored`."""
    return [decode_stored(each.payload, job_id=job_id, position=each.sequence) for each in stored]
