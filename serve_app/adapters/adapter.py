"""What an adapter is, and how the ones that are switched on become part of the API."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response

from serve_app.api_error import ApiError

ErrorForm = Callable[[ApiError], Response]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    name: str
    """The setting that switches it."""
    routers: tuple[APIRouter, ...]
    prefixes: tuple[str, ...] = ()
    """Below these paths errors are answered in its own form; each ends with no slash."""
    error_form: ErrorForm = ApiError.response
    """How its protocol writes an error; ours is ComfyUI's."""


def error_forms(adapters: Iterable[Adapter]) -> Callable[[Request], ErrorForm]:
    """Finds the form in which an error of a request is answered."""
    forms = {prefix: each.error_form for each in adapters for prefix in each.prefixes}

    def form_of(request: Request) -> ErrorForm:
        path = request.scope["path"]
        for prefix, form in forms.items():
            if path == prefix or path.startswith(f"{prefix}/"):
                return form
        return ApiError.response

    return form_of
