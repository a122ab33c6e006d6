"""How this API answers errors: in ComfyUI's form, which is ours, and so that browsers ask."""

from __future__ import annotations

from fastapi import Response

from serve_app.api_error import ApiError

_BASIC = 'Basic realm="Darkroom: any name, and an API key as the password", charset="UTF-8"'


def with_basic(error: ApiError) -> Response:
    """A browser asks for a name and a password, of which the password is the key."""
    answer = error.response()
    if error.status == 401:
        answer.headers.append("WWW-Authenticate", _BASIC)
    return answer
