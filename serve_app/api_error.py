"""An answer of HTTP to a request that is not done."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import Response


class ApiError(Exception):
    """An answer from 400 up. `type` is stable, for programs; `message` is for people."""

    def __init__(
        self,
        status: int,
        type: str,
        message: str,
        *,
        details: str = "",
        extra_info: Mapping[str, Any] | None = None,
        node_errors: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.message = message
        self.details = details
        self.extra_info = dict(extra_info or {})
        self.node_errors = dict(node_errors or {})
        self.headers = dict(headers or {})

    def response(self) -> Response:
        error = {
            "type": self.type,
            "message": self.message,
            "details": self.details,
            "extra_info": self.extra_info,
        }
        return self.response_with({"error": error, "node_errors": self.node_errors})

    def response_with(self, body: Mapping[str, Any]) -> Response:
        """The answer with a body in another form."""
        text = json.dumps(body, ensure_ascii=False)
        # Half of a surrogate pair, which UTF-8 cannot hold, becomes its escape, as JSON has it too.
        data = text.encode("utf-8", "backslashreplace")
        return Response(data, self.status, self.headers, media_type="application/json")


def retry_after(seconds: int) -> dict[str, str]:
    return {"Retry-After": str(seconds)}


def not_found(message: str) -> ApiError:
    return ApiError(404, "not_found", message)
