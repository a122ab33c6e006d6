"""OtlpReceiver: a real HTTP server that takes spans as a collector does, and shows a trace."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue


class OtlpReceiver:
    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        bodies = self.bodies

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                assert self.headers["Content-Type"] == "application/x-protobuf"
                bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Not a word."""

        return Handler

    def spans(self, trace: str) -> list[Any]:
        return [
            span
            for body in list(self.bodies)
            for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for of_scope in of_resource.scope_spans
            for span in of_scope.spans
            if span.trace_id.hex() == trace
        ]


def tree(spans: Sequence[Any]) -> list[str]:
    """A line for each span below the one that it belongs to, in order; times are those since the
    first began, in ms.
    """
    known, first = {span.span_id for span in spans}, min(s.start_time_unix_nano for s in spans)

    def below(parent: bytes | None, depth: int) -> Iterator[str]:
        for span in sorted(spans, key=lambda s: (s.start_time_unix_nano, s.end_time_unix_nano)):
            is_root = parent is None and span.parent_span_id not in known
            if is_root or (parent is not None and span.parent_span_id == parent):
                yield f"{'  ' * depth}{_line(span, first)}"
                yield from below(span.span_id, depth + 1)

    return list(below(None, 0))


def _line(span: Any, first: int) -> str:
    begin, end = ((at - first) / 1e6 for at in (span.start_time_unix_nano, span.end_time_unix_nano))
    parts = [f"{span.name} {begin:.1f}-{end:.1f}", *_values(span.attributes)]
    parts += [f"[{each.name} {(each.time_unix_nano - first) / 1e6:.1f}]" for each in span.events]
    parts += [f"-> {link.trace_id.hex()}" for link in span.links]
    return " ".join(parts)


def _values(attributes: Sequence[KeyValue]) -> Iterator[str]:
    for each in attributes:
        yield f"{each.key.removeprefix('darkroom.')}={_value(each.value)}"


def _value(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    return None if kind is None else getattr(value, kind)
