"""Encodes spans as OTLP messages (https://opentelemetry.io/docs/specs/otlp).

OpenTelemetry's SDK is not used, because it does not support spans from the past with given ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from telemetry.spans import Span, Value

_KINDS = {"accept": ProtoSpan.SPAN_KIND_SERVER, "callback": ProtoSpan.SPAN_KIND_CLIENT}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def export_request(spans: Iterable[Span], resource: Mapping[str, Value]) -> bytes:
    """Return the body of an export request."""
    request = ExportTraceServiceRequest()
    of_resource = request.resource_spans.add()
    of_resource.resource.attributes.extend(_attributes(resource))
    scope = of_resource.scope_spans.add()
    scope.scope.name = "darkroom"
    scope.spans.extend(map(_proto, spans))
    body: bytes = request.SerializeToString()
    return body


def _proto(span: Span) -> ProtoSpan:
    return ProtoSpan(
        trace_id=bytes.fromhex(span.trace),
        span_id=bytes.fromhex(span.id),
        parent_span_id=bytes.fromhex(span.parent or ""),
        name=span.name,
        kind=_KINDS.get(span.name, ProtoSpan.SPAN_KIND_INTERNAL),
        start_time_unix_nano=_nanoseconds(span.begin),
        end_time_unix_nano=_nanoseconds(span.end),
        attributes=_attributes(span.attributes),
        events=[
            ProtoSpan.Event(
                name=moment.name,
                time_unix_nano=_nanoseconds(moment.at),
                attributes=_attributes(moment.attributes),
            )
            for moment in span.moments
        ],
        links=[
            ProtoSpan.Link(trace_id=bytes.fromhex(trace), span_id=bytes.fromhex(span_id))
            for trace, span_id in (link.split("-") for link in span.links)
        ],
        status=Status(code=Status.STATUS_CODE_ERROR if span.is_error else Status.STATUS_CODE_UNSET),
    )


def _attributes(values: Mapping[str, Value]) -> list[KeyValue]:
    return [KeyValue(key=key, value=_any_value(value)) for key, value in values.items()]


def _any_value(value: Value) -> AnyValue:
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case _:
            return AnyValue(string_value=value)


def _nanoseconds(time: datetime) -> int:
    return int((time - _EPOCH) / timedelta(microseconds=1)) * 1000
