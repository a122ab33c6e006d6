"""Routes of assets."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import FormData

from events.log import utc_now
from events.store.records import Upload
from serve_app.adapters.comfy_v2.content import (
    OutputAsset,
    asset_of,
    hash_of,
    name_for,
    output_body,
    upload_body,
    upload_of_hash,
)
from serve_app.adapters.comfy_v2.errors import not_found
from serve_app.adapters.comfy_v2.links import PREFIX
from serve_app.adapters.credentials import GenerateAdapterKey, ReadAdapterKey
from serve_app.api_error import ApiError
from serve_app.receiving.forms import file_of, read_files
from serve_app.replica import Replica, ReplicaDep
from serve_app.sending.stored_file import AskedDep, StoredFile, file_answer
from serve_app.uploads.store import LATENT_SUFFIX

_FILE = "file"

router = APIRouter(prefix=f"{PREFIX}/assets", include_in_schema=False)


class FromHash(BaseModel):
    """Retention is that of every upload, so `expires_in` changes nothing."""

    model_config = ConfigDict(extra="forbid")

    hash: Annotated[str, Field(max_length=256)]
    file_path: Annotated[str, Field(max_length=1024)] | None = None
    tags: Annotated[list[str], Field(max_length=100)] | None = None
    expires_in: Annotated[int, Field(ge=60, le=604_800)] | None = None


@router.post("")
async def post_asset(
    request: Request, response: Response, key: GenerateAdapterKey, replica: ReplicaDep
) -> dict[str, Any]:
    """Store an input image or latent; the same bytes again are the asset that they were."""
    async with read_files(replica, request, key.owner) as form:
        file_name, data = await file_of(form, _FILE)
        digest = await replica.upload_store.decodes.run(key.owner, hash_of, data, is_quick=False)
        _require_hash(form, digest)
        path = _text(form, "file_path") or file_name
        name = name_for(digest, is_latent=path.endswith(LATENT_SUFFIX))
        stored = (await replica.services.uploads.use(key.owner, [name], utc_now())).get(name)
        is_new = stored is None
        if stored is None:
            stored = await replica.upload_store.add(key.owner, name, data)
    response.status_code = 201 if is_new else 200
    return _created(replica, stored, path, is_new=is_new)


@router.post("/from-hash")
async def asset_from_hash(
    request: Request, key: GenerateAdapterKey, replica: ReplicaDep
) -> dict[str, Any]:
    """The caller's asset of bytes that are there."""
    asked = await replica.bodies.model(request, key.owner, FromHash)
    found = await upload_of_hash(replica.services, key.owner, asked.hash)
    if found is None:
        raise _blob_not_found()
    used = await replica.services.uploads.use(key.owner, [found.name], utc_now())
    return _created(replica, used.get(found.name, found), asked.file_path, is_new=False)


@router.head("/by-hash/{digest}")
async def head_asset_by_hash(digest: str, key: ReadAdapterKey, replica: ReplicaDep) -> Response:
    if await upload_of_hash(replica.services, key.owner, digest) is None:
        raise _blob_not_found()
    return Response()


@router.get("/{id}")
async def get_asset(id: str, key: ReadAdapterKey, replica: ReplicaDep) -> dict[str, Any]:
    found = await asset_of(replica, key, id)
    if isinstance(found, OutputAsset):
        return output_body(replica.services, found)
    return upload_body(replica.services, found)


@router.get("/{id}/content")
async def get_asset_content(
    id: str, key: ReadAdapterKey, asked: AskedDep, replica: ReplicaDep
) -> Response:
    found = await asset_of(replica, key, id)
    return await file_answer(
        found.file if isinstance(found, OutputAsset) else StoredFile.of_upload(found),
        asked,
        replica.services.images,
        cache_control="private, no-cache",
        send_timeout_s=replica.services.http_settings.silence_timeout_s,
    )


@router.delete("/{id}", status_code=204, response_class=Response)
async def delete_asset(id: str, key: GenerateAdapterKey, replica: ReplicaDep) -> None:
    """Jobs that were accepted with an upload still get it. A result goes with its job alone."""
    found = await asset_of(replica, key, id)
    if isinstance(found, OutputAsset):
        raise ApiError(409, "asset_in_use", "The asset cannot be deleted now.")
    if not await replica.services.uploads.remove(key.owner, found.name, utc_now()):
        raise not_found()


def _require_hash(form: FormData, digest: str) -> None:
    """Raises ApiError 409."""
    expected = _text(form, "expected_hash")
    if expected and expected.lower() != digest:
        raise ApiError(409, "hash_mismatch", f"The file that came has the hash {digest}.")


def _created(replica: Replica, stored: Upload, path: str | None, *, is_new: bool) -> dict[str, Any]:
    """The path is not kept: it is the one that this request says."""
    body = upload_body(replica.services, stored, created_new=is_new)
    return {**body, "file_path": path or body["file_path"]}


def _text(form: FormData, field: str) -> str:
    value = form.get(field, "")
    return value if isinstance(value, str) else ""


def _blob_not_found() -> ApiError:
    return ApiError(404, "blob_not_found", "You have no asset of this hash.")
