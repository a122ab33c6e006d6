"""`/settings` and `/userdata`: settings and files of ComfyUI's page, in the database.

The name of a file may contain slashes. A folder exists if the name of a file begins with the
folder's name. No name refers to a file on disk.
"""

from __future__ import annotations

import json
import mimetypes
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BeforeValidator

from events.log import utc_now
from events.store.records import ApiKey, FileKind, FileOutcome, UserFile
from serve_app.bodies import joined
from serve_app.error_responses import ApiError, not_found
from serve_app.protocols.comfyui.bodies import invalid, json_body, twin
from serve_app.protocols.comfyui.records import milliseconds
from serve_app.protocols.credentials import GenerateProtocolKey, ReadProtocolKey
from serve_app.replica import JobAccessDep, SubmissionDep, UserFilesDep
from settings.constant import constant

if TYPE_CHECKING:
    from events.store.user_files import UserFiles

MAX_FILES = constant("ADAPTER_MAX_USER_FILES", 1000)
"""The largest number of files and settings of ComfyUI's page that an owner may have."""
MAX_FILE_BYTES = constant("ADAPTER_MAX_USER_FILE_BYTES", 2 * 1024**2)
"""The largest size of one file in bytes, and also the largest total size of an owner's settings."""
MAX_BYTES = constant("ADAPTER_MAX_USER_BYTES", 16 * 1024**2)
"""The largest total size of an owner's files and settings in the database, in bytes."""
_DEFAULTS = {"Comfy.TutorialCompleted": b"true"}
"""Default values that differ from ComfyUI's. They disable the page's tour for new users."""
_LONGEST_ID = 200
_MOST_AT_ONCE = 1000
_LONGEST_NAME = 500
_MOST_FOLDERS = 16
_STYLE = "user.css"
_HEADERS = {
    "Cache-Control": "private, no-cache",
    # A browser that opens the file directly runs no script in it.
    "Content-Security-Policy": "sandbox; default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_TYPES = {"application/json", "text/css"}
"""Media types that the page needs. Other files are sent as `application/octet-stream`."""
_MOVE = "move"
_IfTrue = Annotated[bool, BeforeValidator(lambda text: text.lower() == "true")]
_UnlessFalse = Annotated[bool, BeforeValidator(lambda text: text != "false")]
"""Any text is a valid value of these parameters, as in ComfyUI."""

router = APIRouter(include_in_schema=False)


def too_much() -> ApiError:
    return ApiError(
        413,
        "too_many_user_bytes",
        f"At most {MAX_FILES:,} files of {MAX_BYTES:,} bytes in all, and {MAX_FILE_BYTES:,} bytes "
        "of settings, are stored. Delete some files.",
    )


@router.get(twin("/settings"))
async def settings(
    key: ReadProtocolKey, access: JobAccessDep, user_files: UserFilesDep
) -> Response:
    """Return all settings. Values are stored as JSON and sent without being parsed."""
    async with access.bodies.reserve_memory(key.owner, 2 * MAX_FILE_BYTES):
        kept = _DEFAULTS | await user_files.contents(key.owner, FileKind.SETTING)
        members = (json.dumps(id).encode() + b": " + value for id, value in kept.items())
        content = b"{" + b", ".join(members) + b"}"
    return Response(content, media_type="application/json")


@router.get(twin("/settings/{id}"))
async def setting(id: str, key: ReadProtocolKey, user_files: UserFilesDep) -> Response:
    """Return a setting, or null if it was never set."""
    kept = await user_files.content(key.owner, FileKind.SETTING, id) if _is_id(id) else None
    content = _DEFAULTS.get(id, b"null") if kept is None else kept
    return Response(content, media_type="application/json")


@router.post(twin("/settings"))
async def change_settings(
    request: Request, key: GenerateProtocolKey, submission: SubmissionDep, user_files: UserFilesDep
) -> Response:
    async with json_body(submission.bodies, request, key.owner) as (_, changes):
        if not isinstance(changes, dict) or len(changes) > _MOST_AT_ONCE:
            raise invalid(f"The body must be an object with at most {_MOST_AT_ONCE} settings.")
        return await _keep(user_files, key.owner, changes)


@router.post(twin("/settings/{id}"))
async def change_setting(
    id: str,
    request: Request,
    key: GenerateProtocolKey,
    *,
    submission: SubmissionDep,
    user_files: UserFilesDep,
) -> Response:
    async with json_body(submission.bodies, request, key.owner) as (_, value):
        return await _keep(user_files, key.owner, {id: value})


async def _keep(user_files: UserFiles, owner: str, changes: Mapping[str, Any]) -> Response:
    """Store settings. Raises ApiError 400, 413, DatabaseUnavailable."""
    if not all(map(_is_id, changes)):
        raise invalid(
            f"The id of a setting must have 1 to {_LONGEST_ID} printable ASCII characters."
        )
    values = {id: json.dumps(value).encode() for id, value in changes.items()}
    kept = await user_files.put(
        owner, FileKind.SETTING, values, at=utc_now(), max_bytes=MAX_FILE_BYTES
    )
    if kept is FileOutcome.FULL:
        raise too_much()
    return Response()


def _is_id(id: str) -> bool:
    return 0 < len(id) <= _LONGEST_ID and id.isascii() and id.isprintable()


@router.get(twin("/userdata"))
async def list_user_files(
    key: ReadProtocolKey,
    user_files: UserFilesDep,
    *,
    of: Annotated[str, Query(alias="dir", max_length=_LONGEST_NAME)] = "",
    recurse: _IfTrue = False,
    full_info: _IfTrue = False,
    split: _IfTrue = False,
) -> list[Any]:
    """List the files whose names begin with the folder."""
    folder = of.strip("/")
    begin = f"{folder}/" if folder else ""
    files = await user_files.all(key.owner, FileKind.DATA)
    found = [(each.name.removeprefix(begin), each) for each in files if each.name.startswith(begin)]
    return [
        _told(name, file, full_info=full_info, split=split)
        for name, file in found
        if recurse or "/" not in name
    ]


@router.get(twin("/v2/userdata"))
async def list_user_folder(
    key: ReadProtocolKey,
    user_files: UserFilesDep,
    *,
    path: Annotated[str, Query(max_length=3 * _LONGEST_NAME)] = "",
) -> list[dict[str, Any]]:
    """List everything in a folder and its subfolders, folders first."""
    folder = unquote(path).strip("/")  # ComfyUI decodes the parameter twice.
    files = await user_files.all(key.owner, FileKind.DATA)
    if any(each.name == folder for each in files):
        raise invalid("This path is a file and not a folder.")
    begin = f"{folder}/" if folder else ""
    found = [each for each in files if each.name.startswith(begin)]
    if folder and not found:
        raise not_found("There is no such folder.")
    folders = {
        each.name[:end]
        for each in found
        for end, letter in enumerate(each.name)
        if letter == "/" and end > len(folder)
    }
    listed: list[dict[str, Any]] = [
        *({"path": name, "type": "directory"} for name in folders),
        *(
            {
                "path": each.name,
                "type": "file",
                "size": each.size_bytes,
                "modified": each.changed_at.timestamp(),
            }
            for each in found
        ),
    ]
    named = [{"name": each["path"].rpartition("/")[2], **each} for each in listed]
    return sorted(named, key=lambda each: (each["type"], each["name"].lower(), each["path"]))


@router.get(twin("/userdata/{path:path}"))
async def read_user_file(
    request: Request, key: ReadProtocolKey, access: JobAccessDep, user_files: UserFilesDep
) -> Response:
    [name] = _names(request)
    async with access.bodies.reserve_memory(key.owner, MAX_FILE_BYTES):
        content = await user_files.content(key.owner, FileKind.DATA, name)
    if content is None:
        # The page links the style, and would log an error if the file were missing.
        if name != _STYLE:
            raise not_found("There is no such file.")
        content = b""
    guessed = mimetypes.guess_type(name)[0]
    media_type = guessed if guessed in _TYPES else "application/octet-stream"
    return Response(content, headers=_HEADERS, media_type=media_type)


@router.post(twin("/userdata/{path:path}"))
async def store_user_file(
    request: Request,
    key: GenerateProtocolKey,
    submission: SubmissionDep,
    user_files: UserFilesDep,
    *,
    overwrite: _UnlessFalse = True,
    full_info: _IfTrue = False,
) -> Response:
    """Store the body under a name. A path `NAME/move/NEW` renames the file instead."""
    [name, *to] = _names(request)
    if to:
        kept = await user_files.rename(
            key.owner, FileKind.DATA, name, to[0], at=utc_now(), replaces=overwrite
        )
    else:
        async with submission.bodies.chunks(request, key.owner, max_bytes=MAX_FILE_BYTES) as chunks:
            content = {name: await joined(chunks)}
            kept = await user_files.put(
                key.owner, FileKind.DATA, content, at=utc_now(), replaces=overwrite
            )
    if kept is not FileOutcome.DONE:
        raise _refusal(kept)
    return await _stored(user_files, key, to[0] if to else name, full_info=full_info)


@router.delete(twin("/userdata/{path:path}"), status_code=204, response_class=Response)
async def delete_user_file(
    request: Request, key: GenerateProtocolKey, user_files: UserFilesDep
) -> None:
    [name] = _names(request)
    if not await user_files.remove(key.owner, FileKind.DATA, name):
        raise not_found("There is no such file.")


async def _stored(user_files: UserFiles, key: ApiKey, name: str, *, full_info: bool) -> Response:
    if not full_info:
        return JSONResponse(name)
    found = await user_files.find(key.owner, FileKind.DATA, name)
    if found is None:  # Another request has deleted the file.
        raise not_found("There is no such file.")
    return JSONResponse(_told(name, found, full_info=True, split=False))


def _told(name: str, file: UserFile, *, full_info: bool, split: bool) -> Any:
    if full_info:
        return {
            "path": name,
            "size": file.size_bytes,
            "modified": milliseconds(file.changed_at),
            "created": milliseconds(file.created_at),
        }
    return [name, *name.split("/")] if split else name


def _refusal(kept: FileOutcome) -> ApiError:
    if kept is FileOutcome.EXISTS:
        return ApiError(409, "file_exists", "A file with this name exists already.")
    return too_much() if kept is FileOutcome.FULL else not_found("There is no such file.")


def _names(request: Request) -> list[str]:
    """Return the name in the path, and for a move also the new name. Raises ApiError 400.

    A client writes a slash in a name as %2F, so a plain slash separates the parts of the path.
    """
    path = request.scope["raw_path"].decode("latin-1").partition("?")[0]
    parts = path.partition("/userdata/")[2].split("/")
    is_move = len(parts) == 3 and parts[1] == _MOVE and request.method == "POST"
    names = [unquote(parts[0]), unquote(parts[2])] if is_move else [unquote("/".join(parts))]
    if not all(map(_is_name, names)):
        raise invalid("A name must have 1 to 500 printable characters, no `..`, and no empty part.")
    return names


def _is_name(name: str) -> bool:
    parts = name.split("/")
    return (
        len(name) <= _LONGEST_NAME
        and name.isprintable()
        and "\\" not in name
        and len(parts) <= _MOST_FOLDERS
        and all(part.strip() and part not in {".", ".."} for part in parts)
    )
