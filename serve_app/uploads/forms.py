"""Reads the form (multipart/form-data) with which a file is uploaded."""

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
_FORM_BYTES = 64 * 1024
"""Room for the parts of a form beside its file."""
_MAX_FIELDS = 16


@asynccontextmanager
async def read_form(
    replica: Replica, request: Request, owner: str
) -> AsyncGenerator[tuple[str, bytes, FormData]]:
    """File name and bytes of the form's file, and its fields; its turn lasts as the context does.

    Raises NoTurn, ApiError 400, 408, 413, 415.
    """
    max_bytes = replica.services.http_settings.max_upload_bytes
    _require_form(request)
    form_bytes = max_bytes + _FORM_BYTES
    async with replica.bodies.chunks(request, owner, max_bytes=form_bytes) as chunks:
        yield await _read_form(request, chunks, max_bytes=max_bytes)


def _require_form(request: Request) -> None:
    """Raises ApiError 415."""
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "multipart/form-data":
        message = "Send the image as a file of a form (multipart/form-data)."
        raise unsupported(message, content_type)


async def _read_form(
    request: Request, chunks: AsyncGenerator[bytes], *, max_bytes: int
) -> tuple[str, bytes, FormData]:
    """Raises ApiError 400, 408, 413."""
    parser = MultiPartParser(
        request.headers, chunks, max_files=1, max_fields=_MAX_FIELDS, max_part_size=_FORM_BYTES
    )
    parser.spool_max_size = max_bytes + _FORM_BYTES  # it is read whole, so no file is needed
    try:
        form = await parser.parse()
        part = form.get(FIELD)
        if not isinstance(part, UploadFile) or not part.filename:
            raise _invalid(f"The form has no file named {FIELD!r}.")
        name, data = part.filename, await part.read()
    except (MultiPartException, UnicodeError) as error:
        raise _invalid("The form cannot be read.", str(error)) from error
    except ClientDisconnect as error:
        raise _invalid("The form ended before it was complete.") from error
    finally:
        # Starlette itself does so where parsing fails, but not where a form has no end.
        for file in parser._files_to_close_on_error:
            file.close()
    if len(data) > max_bytes:
        raise too_large(max_bytes)
    return name, data, form


def _invalid(message: str, details: str = "") -> ApiError:
    return ApiError(400, "invalid_upload", message, details=details)
