"""Reads the forms (multipart/form-data) with which files are uploaded, whole and within bounds."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from serve_app.api_error import ApiError
from serve_app.body import too_large, unsupported
from serve_app.replica import Replica

FIELD = "image"
_TEXT_BYTES = 64 * 1024
"""Room for the parts of a form beside its files; each of them may have as much."""
_MAX_FIELDS = 32


@asynccontextmanager
async def read_form(
    replica: Replica, request: Request, owner: str
) -> AsyncGenerator[tuple[str, bytes, FormData]]:
    """File name and bytes of the form's file, and its fields; its turn lasts as the context does.

    Raises NoTurn, ApiError 400, 408, 413, 415.
    """
    async with read_files(replica, request, owner) as form:
        name, data = await file_of(form, FIELD)
        yield name, data, form


@asynccontextmanager
async def read_files(
    replica: Replica, request: Request, owner: str, *, max_files: int = 1
) -> AsyncGenerator[FormData]:
    """A form, its files in memory; its turn lasts as the context does.

    Raises NoTurn, ApiError 400, 408, 413, 415.
    """
    max_bytes = replica.services.http_settings.max_upload_bytes
    _require_form(request)
    form_bytes = max_files * max_bytes + _TEXT_BYTES
    async with replica.bodies.chunks(request, owner, max_bytes=form_bytes) as chunks:
        parser = MultiPartParser(
            request.headers,
            chunks,
            max_files=max_files,
            max_fields=_MAX_FIELDS,
            max_part_size=_TEXT_BYTES,
        )
        parser.spool_max_size = form_bytes  # it is read whole, so no file is needed
        try:
            form = await _parsed(parser)
            if any((each.size or 0) > max_bytes for _, each in files_in(form)):
                raise too_large(max_bytes)
            yield form
        finally:
            # Starlette itself does so where parsing fails, but not where a form has no end.
            for file in parser._files_to_close_on_error:
                file.close()


def files_in(form: FormData) -> list[tuple[str, UploadFile]]:
    """Every file of a form that has a name, with its field."""
    items = form.multi_items()
    return [
        (field, each) for field, each in items if isinstance(each, UploadFile) and each.filename
    ]


async def file_of(form: FormData, field: str) -> tuple[str, bytes]:
    """The name and the bytes of a form's file. Raises ApiError 400."""
    part = form.get(field)
    if not isinstance(part, UploadFile) or not part.filename:
        raise _invalid(f"The form has no file named {field!r}.")
    return part.filename, await part.read()


async def _parsed(parser: MultiPartParser) -> FormData:
    """Raises ApiError 400, 408, 413."""
    try:
        form = await parser.parse()
        _require_texts(form)
    except (MultiPartException, ValueError) as error:
        raise _invalid("The form cannot be read.", str(error)) from error
    except ClientDisconnect as error:
        raise _invalid("The form ended before it was complete.") from error
    return form


def _require_texts(form: FormData) -> None:
    """A form may name any codec of Python, and some of them give texts that nobody can write.

    Raises UnicodeError.
    """
    for name, each in form.multi_items():
        for text in (name, each.filename or "" if isinstance(each, UploadFile) else each):
            text.encode()


def _require_form(request: Request) -> None:
    """Raises ApiError 415."""
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "multipart/form-data":
        message = "Send the image as a file of a form (multipart/form-data)."
        raise unsupported(message, content_type)


def _invalid(message: str, details: str = "") -> ApiError:
    return ApiError(400, "invalid_upload", message, details=details)
