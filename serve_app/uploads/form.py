"""Forms with files (multipart/form-data), read whole and within bounds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from serve_app.api_error import ApiError
from serve_app.body import too_large, unsupported

TEXT_BYTES = 64 * 1024
"""Room for the parts of a form beside its files; each text may have as much."""
_MAX_FIELDS = 32


@dataclass(frozen=True, slots=True)
class FormFile:
    name: str
    data: bytes
    media_type: str = ""
    """As the caller says."""


@dataclass(frozen=True, slots=True)
class Form:
    files: dict[str, list[FormFile]]
    texts: dict[str, str]
    """Of one that is there more than once, the last."""

    def file(self, field: str) -> FormFile:
        """The last file of a field. Raises ApiError 400."""
        if not self.files.get(field):
            raise invalid_form(f"The form has no file named {field!r}.")
        return self.files[field][-1]


def require_form(request: Request) -> None:
    """Raises ApiError 415."""
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "multipart/form-data":
        message = "Send the image as a file of a form (multipart/form-data)."
        raise unsupported(message, content_type)


async def read_form(
    request: Request, chunks: AsyncGenerator[bytes], *, max_file_bytes: int, max_files: int = 1
) -> Form:
    """The form of a request, of which `chunks` is the body. Raises ApiError 400, 408, 413."""
    parser = MultiPartParser(
        request.headers,
        chunks,
        max_files=max_files,
        max_fields=_MAX_FIELDS,
        max_part_size=TEXT_BYTES,
    )
    # It is read whole, so no file is needed.
    parser.spool_max_size = max_files * max_file_bytes + TEXT_BYTES
    files: defaultdict[str, list[FormFile]] = defaultdict(list)
    texts = {}
    try:
        for field, part in (await parser.parse()).multi_items():
            if not isinstance(part, UploadFile):
                texts[field] = part
            elif part.filename:
                file = FormFile(part.filename, await part.read(), part.content_type or "")
                files[field].append(file)
    except (MultiPartException, UnicodeError) as error:
        raise invalid_form("The form cannot be read.", str(error)) from error
    except ClientDisconnect as error:
        raise invalid_form("The form ended before it was complete.") from error
    finally:
        # Starlette itself does so where parsing fails, but not where a form has no end.
        for spooled in parser._files_to_close_on_error:
            spooled.close()
    if any(len(file.data) > max_file_bytes for found in files.values() for file in found):
        raise too_large(max_file_bytes)
    return Form(dict(files), texts)


def invalid_form(message: str, details: str = "") -> ApiError:
    return ApiError(400, "invalid_upload", message, details=details)
