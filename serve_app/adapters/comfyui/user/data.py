"""`/userdata`: workflows and other files of the caller's page, in the database.

Names have slashes, and there are folders as far as names say so. No name leads to a disk.
"""

from __future__ import annotations

import mimetypes
from typing import Annotated, Any
from urllib.parse import unquote

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from events.log import utc_now
from events.store.records import ApiKey, FileKind, Kept, UserFile
from serve_app.adapters.comfyui.bodies import invalid
from serve_app.adapters.comfyui.records import milliseconds
from serve_app.adapters.comfyui.twins import twin
from serve_app.adapters.comfyui.user.room import too_much
from serve_app.adapters.credentials import GenerateAdapterKey, ReadAdapterKey
from serve_app.api_error import ApiError, not_found
from serve_app.body import joined
from serve_app.replica import Replica, ReplicaDep

_LONGEST_NAME = 500
_MOST_FOLDERS = 16
_STYLE = "user.css"
_HEADERS = {
    "Cache-Control": "private, no-cache",
    # A browser that is led to it runs nothing of it.
    "Content-Security-Policy": "sandbox; default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_TYPES = {"application/json", "text/css"}
"""What a page needs to be told. Anything else is bytes."""
_MOVE = "move"

router = APIRouter(include_in_schema=False)


@router.get(twin("/userdata"))
async def list_user_files(
    key: ReadAdapterKey,
    replica: ReplicaDep,
    *,
    of: Annotated[str, Query(alias="dir", max_length=_LONGEST_NAME)] = "",
    recurse: bool = False,
    full_info: bool = False,
    split: bool = False,
) -> list[Any]:
    """Those below a folder, by names that begin there; none where there is no such folder."""
    folder = of.strip("/")
    begin = f"{folder}/" if folder else ""
    files = await replica.services.user_files.all(key.owner, FileKind.DATA)
    found = [(each.name.removeprefix(begin), each) for each in files if each.name.startswith(begin)]
    return [
        _told(name, file, full_info=full_info, split=split)
        for name, file in found
        if recurse or "/" not in name
    ]


@router.get(twin("/userdata/{path:path}"))
async def read_user_file(request: Request, key: ReadAdapterKey, replica: ReplicaDep) -> Response:
    [name] = _names(request)
    most = replica.services.adapter_settings.max_user_file_bytes
    async with replica.bodies.room(key.owner, most):
        content = await replica.services.user_files.content(key.owner, FileKind.DATA, name)
    if content is None:
        if name != _STYLE:  # the page links it, and logs an error where there is none
            raise not_found("There is no such file.")
        content = b""
    guessed = mimetypes.guess_type(name)[0]
    media_type = guessed if guessed in _TYPES else "application/octet-stream"
    return Response(content, headers=_HEADERS, media_type=media_type)


@router.post(twin("/userdata/{path:path}"))
async def store_user_file(
    request: Request,
    key: GenerateAdapterKey,
    replica: ReplicaDep,
    *,
    overwrite: bool = True,
    full_info: bool = False,
) -> Response:
    """Store the body under a name, or move what is there to another one: `…/move/…`."""
    [name, *to] = _names(request)
    files = replica.services.user_files
    if to:
        kept = await files.rename(
            key.owner, FileKind.DATA, name, to[0], at=utc_now(), replaces=overwrite
        )
    else:
        most = replica.services.adapter_settings.max_user_file_bytes
        async with replica.bodies.chunks(request, key.owner, max_bytes=most) as chunks:
            content = {name: await joined(chunks)}
            kept = await files.put(
                key.owner, FileKind.DATA, content, at=utc_now(), replaces=overwrite
            )
    if kept is not Kept.DONE:
        raise _refusal(replica, kept)
    return await _stored(replica, key, to[0] if to else name, full_info=full_info)


@router.delete(twin("/userdata/{path:path}"), status_code=204, response_class=Response)
async def delete_user_file(request: Request, key: GenerateAdapterKey, replica: ReplicaDep) -> None:
    [name] = _names(request)
    if not await replica.services.user_files.remove(key.owner, FileKind.DATA, name):
        raise not_found("There is no such file.")


async def _stored(replica: Replica, key: ApiKey, name: str, *, full_info: bool) -> Response:
    if not full_info:
        return JSONResponse(name)
    found = await replica.services.user_files.find(key.owner, FileKind.DATA, name)
    if found is None:  # it was deleted meanwhile
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


def _refusal(replica: Replica, kept: Kept) -> ApiError:
    if kept is Kept.EXISTS:
        return ApiError(409, "file_exists", "There is a file of this name.")
    return too_much(replica) if kept is Kept.FULL else not_found("There is no such file.")


def _names(request: Request) -> list[str]:
    """The name in the path, and of a move the other one. Raises ApiError 400.

    A client writes the slashes of a name as %2F, so that those of the path are others.
    """
    path = request.scope["raw_path"].decode("latin-1").partition("?")[0]
    parts = path.partition("/userdata/")[2].split("/")
    is_move = len(parts) == 3 and parts[1] == _MOVE and request.method == "POST"
    names = [unquote(parts[0]), unquote(parts[2])] if is_move else [unquote("/".join(parts))]
    if not all(map(_is_name, names)):
        raise invalid("A name has 1 to 500 printable characters, no `..`, and no empty part.")
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
