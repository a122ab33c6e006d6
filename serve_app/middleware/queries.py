"""The query of a request: each parameter in it is one that the route takes, and is there once.

A mistyped name would be passed over otherwise, and a job with a `calback_url` would call nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from difflib import get_close_matches
from itertools import islice
from typing import Any, get_args, get_origin

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

_SHOWN = 50


def require_known_query(request: Request) -> None:
    """Raises RequestValidationError, which names the nearest parameter to each unknown one."""
    if not request.scope["query_string"]:
        return
    route: APIRoute = request.scope["route"]
    known = {field.alias: field.field_info.annotation for field in route.dependant.query_params}
    given = Counter(name for name, _ in request.query_params.multi_items())
    wrong = (
        name
        for name, count in given.items()
        if name not in known or (count > 1 and not _is_list(known[name]))
    )
    if errors := [_error(name, known) for name in islice(wrong, _SHOWN)]:
        raise RequestValidationError(errors)


def _is_list(annotation: Any) -> bool:
    return any(list in {each, get_origin(each)} for each in (annotation, *get_args(annotation)))


def _error(name: str, known: Collection[str]) -> dict[str, Any]:
    if name in known:
        return {"type": "repeated_parameter", "loc": ("query", name), "msg": "give it once"}
    near = get_close_matches(name, known, n=1)
    if near:
        message = f"there is no such parameter; did you mean {near[0]}?"
    elif known:
        message = f"there is no such parameter; this call takes {', '.join(known)}"
    else:
        message = "there is no such parameter; this call takes none"
    return {"type": "unknown_parameter", "loc": ("query", name), "msg": message}
