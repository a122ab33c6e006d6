"""The routes for assets. An asset is an upload of the caller or a result of a job.

An upload through this API is named after the blake3 hash of the sent bytes, by which it is found
again. The stored file of an image or a latent has another digest, because it is encoded again.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from urllib.parse import urlsplit

from blake3 import blake3
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import FormData

from events.job import Job
from events.log import utc_now
from events.store.records import ApiKey, Upload
from events.types import ImageStored
from serve_app.bodies import file_of, read_files
from serve_app.error_responses import ApiError
from serve_app.file_signatures import IMAGE_SUFFIXES, MEDIA_SUFFIXES, suffix_in, suffixes_of
from serve_app.protocols.comfy_v2.errors import missing_asset, not_found
from serve_app.protocols.credentials import GenerateProtocolKey, ReadProtocolKey
from serve_app.refusals import JobNotFound
from serve_app.replica import JobAccess, JobAccessDep, Submission, SubmissionDep
from serve_app.stored_file import FileRequestDep, StoredFile, file_answer
from serve_app.upload_store import LATENT_SUFFIX
from storage.file_names import copy_name

PREFIX = "/api/v2"
_NEVER = datetime(9999, 1, 1, tzinfo=UTC)
"""The expiry time of objects that are kept forever. The API requires a time for each object."""
_HASH_PREFIX = "blake3:"
_HASH = re.compile(r"blake3:[0-9a-f]{64}")
_SUFFIXES = (*IMAGE_SUFFIXES, LATENT_SUFFIX[1:], *MEDIA_SUFFIXES)
_NAME = re.compile(rf"blake3-(?P<hex>[0-9a-f]{{64}})\.(?:{'|'.join(_SUFFIXES)})")
_UPLOAD_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OUTPUT_ID = re.compile(rf"(?P<job>{_UPLOAD_ID.pattern})-(?P<index>0|[1-9][0-9]{{0,5}})")
_TYPE = "__type"
_ASSET = "core/ASSET"
_MOST = 64
"""The most different assets in one workflow. Each asset needs a query, and each result a copy."""
_FILE = "file"
_FORM_TEXTS = ("file_path", "expected_hash")

router = APIRouter(prefix=f"{PREFIX}/assets", include_in_schema=False)


def job_links(access: JobAccess, job: Job) -> dict[str, str]:
    """Return the URLs of a job without a host, so that they are relative to the caller's host."""
    below = urlsplit(access.files.public_url).path
    path = f"{below}{PREFIX}/jobs/{job.id}"
    return {"self": path, "events": f"{path}/events", "cancel": f"{path}/cancel"}


def content_url(access: JobAccess, asset_id: str) -> str:
    """Return the URL of an asset's content. Requests to this URL need a key."""
    return f"{access.files.public_url}{PREFIX}/assets/{asset_id}/content"


def job_expires_at(access: JobAccess, job: Job) -> datetime:
    """Return when a job expires. For an open job this is the earliest possible time."""
    days = access.files.job_days
    return (job.ended_at or utc_now()) + timedelta(days=days) if days else _NEVER


def image_url_expires_at(access: JobAccess, job: Job) -> datetime:
    ttl_s = access.files.image_url_s
    expires_at = job_expires_at(access, job)
    return min(utc_now() + timedelta(seconds=ttl_s), expires_at) if ttl_s else expires_at


def upload_expires_at(access: JobAccess, upload: Upload) -> datetime | None:
    """Return when an upload expires; None means never. Each job with it extends the time."""
    days = access.files.upload_days
    return upload.used_at + timedelta(days=days) if days else None


def url_expires_at(access: JobAccess, upload: Upload) -> datetime:
    return upload_expires_at(access, upload) or _NEVER


@dataclass(frozen=True, slots=True)
class OutputAsset:
    """A result of a job. The id of the asset contains the job's id and the image's index."""

    job: Job
    image: ImageStored

    @property
    def file(self) -> StoredFile:
        return StoredFile.of_image(self.image)


def hash_of(data: bytes) -> str:
    """Return `blake3:` and the hash in hexadecimal digits. Blocks the thread."""
    return f"{_HASH_PREFIX}{blake3(data).hexdigest()}"


def name_for(digest: str, suffix: str) -> str:
    return f"{digest.replace(':', '-')}.{suffix}"


def _suffix_of(path: str, data: bytes) -> str:
    """Return the suffix of an upload's name. Loaders of video and audio files depend on it."""
    if path.endswith(LATENT_SUFFIX):
        return LATENT_SUFFIX[1:]
    suffixes = suffixes_of(data) or IMAGE_SUFFIXES
    return suffix_in(path, suffixes) or suffixes[0]


def hash_in(upload: Upload) -> str | None:
    """Return the blake3 hash in an upload's name; None if another API stored the upload."""
    named = _NAME.fullmatch(upload.name)
    return None if named is None else f"{_HASH_PREFIX}{named['hex']}"


def output_id(job: Job, image: ImageStored) -> str:
    return f"{job.id}-{image.index}"


async def upload_of_hash(access: JobAccess, owner: str, digest: str) -> Upload | None:
    """Return the upload of the owner with this hash, if any. Raises DatabaseUnavailable."""
    if not _HASH.fullmatch(digest):
        return None
    return await access.uploads.find(owner, *(name_for(digest, each) for each in _SUFFIXES))


async def asset_of(access: JobAccess, key: ApiKey, id: str) -> Upload | OutputAsset:
    """Return the asset with this id. Raises ApiError 404 and the errors of reading a job."""
    if (named := _OUTPUT_ID.fullmatch(id)) is not None:
        try:
            job = await access.jobs.owned(named["job"], key, with_request=False)
        except JobNotFound as error:
            raise not_found() from error
        image = job.image(int(named["index"]))
        if image is not None:
            return OutputAsset(job, image)
    elif _UPLOAD_ID.fullmatch(id):
        upload = (await access.uploads.of_ids(key.owner, [id])).get(id)
        if upload is not None:
            return upload
    raise not_found()


def upload_body(access: JobAccess, upload: Upload, **more: Any) -> dict[str, Any]:
    """Return an upload in the API's format of an asset."""
    expires_at = upload_expires_at(access, upload)
    digest = hash_in(upload)
    return {
        "id": upload.id,
        "hash": digest,
        "size_bytes": upload.size_bytes,
        "content_type": StoredFile.of_upload(upload).media_type,
        "file_path": upload.name if digest is None else None,
        "created_at": upload.created_at.isoformat(),
        "url": content_url(access, upload.id),
        "url_expires_at": url_expires_at(access, upload).isoformat(),
        "expires_at": expires_at and expires_at.isoformat(),
        **more,
    }


def output_body(access: JobAccess, asset: OutputAsset) -> dict[str, Any]:
    job, image = asset.job, asset.image
    return {
        "id": output_id(job, image),
        "hash": None,
        "size_bytes": image.size_bytes,
        "content_type": asset.file.media_type,
        "file_path": None,
        "created_at": (job.started_at or job.submitted_at).isoformat(),
        "url": access.files.url_for(job.id, image),
        "url_expires_at": image_url_expires_at(access, job).isoformat(),
        "expires_at": job_expires_at(access, job).isoformat(),
        "job_id": job.id,
    }


async def name_uploads(
    submission: Submission, access: JobAccess, key: ApiKey, workflow: dict[str, Any]
) -> None:
    """Replace each asset reference in the inputs of nodes by the name of an upload.

    A result of a job is copied to an upload of the owner, which lasts until the job is erased.
    Raises ApiError 422 `missing_asset`, and the errors of reading a job and storing an upload.
    """
    found = list(_inputs(workflow))
    ids = {_id_of(reference): _hint_of(reference) for _, _, reference in found}
    if len(ids) > _MOST:
        raise missing_asset(f"The workflow names more than {_MOST} assets.")
    names = {
        id: await _name(submission, access, key, id=id, digest=digest) for id, digest in ids.items()
    }
    for inputs, name, reference in found:
        inputs[name] = names[_id_of(reference)]


async def _name(
    submission: Submission, access: JobAccess, key: ApiKey, *, id: str, digest: str
) -> str:
    """Return the name of the upload for an asset.

    `digest` is used only if there is no asset `id`. This occurs if two concurrent uploads of the
    same bytes were stored as one upload.
    """
    try:
        found = await asset_of(access, key, id)
    except ApiError as error:
        same = await upload_of_hash(access, key.owner, digest)
        if same is None:
            raise missing_asset(f"There is no asset {id[:100]!r}.") from error
        return same.name
    if not isinstance(found, OutputAsset):
        return found.name
    name = copy_name(found.job.id, found.image.index, found.image.media_type)
    if await access.uploads.use(key.owner, [name], utc_now()):
        return name  # The copy is up to date, because a result never changes.
    async with access.bodies.reserve_memory(key.owner, found.file.size_bytes):
        data = await access.files.images.get(found.file.key)
        return (await submission.uploads.add_own(key.owner, name, data)).name


def _inputs(workflow: dict[str, Any]) -> Generator[tuple[dict[str, Any], str, dict[str, Any]]]:
    """Yield each input that is a reference: the node's inputs, the input's name, the reference."""
    for node in workflow.values():
        inputs = node.get("inputs") if isinstance(node, dict) else None
        if isinstance(inputs, dict):
            for name, value in inputs.items():
                if isinstance(value, dict) and value.get(_TYPE) == _ASSET:
                    yield inputs, name, value


def _id_of(reference: dict[str, Any]) -> str:
    """Return the asset id in a reference. Raises ApiError 422."""
    info = reference.get("info")
    id = info.get("id") if isinstance(info, dict) else None
    if not isinstance(id, str):
        raise missing_asset(f"A {_ASSET} must have the member info.id.")
    return id


def _hint_of(reference: dict[str, Any]) -> str:
    """Return the hash in a reference; empty if the reference has none."""
    digest = reference["info"].get("hash")
    return digest if isinstance(digest, str) else ""


class FromHash(BaseModel):
    """`expires_in` has no effect, because all uploads are kept for the same time."""

    model_config = ConfigDict(extra="forbid")

    hash: Annotated[str, Field(max_length=256)]
    file_path: Annotated[str, Field(max_length=1024)] | None = None
    tags: Annotated[list[str], Field(max_length=100)] | None = None
    expires_in: Annotated[int, Field(ge=60, le=604_800)] | None = None


@router.post("")
async def post_asset(
    request: Request,
    response: Response,
    key: GenerateProtocolKey,
    *,
    submission: SubmissionDep,
    access: JobAccessDep,
) -> dict[str, Any]:
    """Store an input file. If the same bytes were stored before, return that asset."""
    form_of = read_files(access.bodies, request, key.owner, fields=(_FILE,), texts=_FORM_TEXTS)
    async with form_of as form:
        file_name, data = await file_of(form, _FILE)
        digest = await submission.uploads.decodes.run(key.owner, hash_of, data, is_quick=False)
        _require_hash(form, digest)
        path = _text(form, "file_path") or file_name
        name = name_for(digest, _suffix_of(path, data))
        stored = (await access.uploads.use(key.owner, [name], utc_now())).get(name)
        is_new = stored is None
        if stored is None:
            stored = await submission.uploads.add_own(key.owner, name, data)
    response.status_code = 201 if is_new else 200
    return _created(access, stored, path, is_new=is_new)


@router.post("/from-hash")
async def asset_from_hash(
    request: Request, key: GenerateProtocolKey, access: JobAccessDep
) -> dict[str, Any]:
    """Return the caller's asset with this hash, without an upload."""
    asked = await access.bodies.model(request, key.owner, FromHash)
    found = await upload_of_hash(access, key.owner, asked.hash)
    if found is None:
        raise _blob_not_found()
    used = await access.uploads.use(key.owner, [found.name], utc_now())
    return _created(access, used.get(found.name, found), asked.file_path, is_new=False)


@router.head("/by-hash/{digest}")
async def head_asset_by_hash(digest: str, key: ReadProtocolKey, access: JobAccessDep) -> Response:
    if await upload_of_hash(access, key.owner, digest) is None:
        raise _blob_not_found()
    return Response()


@router.get("/{id}")
async def get_asset(id: str, key: ReadProtocolKey, access: JobAccessDep) -> dict[str, Any]:
    found = await asset_of(access, key, id)
    if isinstance(found, OutputAsset):
        return output_body(access, found)
    return upload_body(access, found)


@router.get("/{id}/content")
async def get_asset_content(
    id: str, key: ReadProtocolKey, file_request: FileRequestDep, access: JobAccessDep
) -> Response:
    found = await asset_of(access, key, id)
    return await file_answer(
        found.file if isinstance(found, OutputAsset) else StoredFile.of_upload(found),
        file_request,
        access.files.images,
        cache_control="private, no-cache",
    )


@router.delete("/{id}", status_code=204, response_class=Response)
async def delete_asset(id: str, key: GenerateProtocolKey, access: JobAccessDep) -> None:
    """Delete an upload. A result of a job cannot be deleted without its job.

    Jobs that were accepted with the upload can still read the upload.
    """
    found = await asset_of(access, key, id)
    if isinstance(found, OutputAsset):
        raise ApiError(409, "asset_in_use", "The asset cannot be deleted now.")
    if not await access.uploads.remove(key.owner, found.name, utc_now()):
        raise not_found()


def _require_hash(form: FormData, digest: str) -> None:
    """Raise ApiError 409 if the form expects another hash."""
    expected = _text(form, "expected_hash")
    if expected and expected.lower() != digest:
        raise ApiError(409, "hash_mismatch", f"The received file has the hash {digest}.")


def _created(
    access: JobAccess, stored: Upload, path: str | None, *, is_new: bool
) -> dict[str, Any]:
    """Return the body of the answer. Its `file_path` is `path`, which is not stored."""
    body = upload_body(access, stored, created_new=is_new)
    return {**body, "file_path": path or body["file_path"]}


def _text(form: FormData, field: str) -> str:
    value = form.get(field, "")
    return value if isinstance(value, str) else ""


def _blob_not_found() -> ApiError:
    return ApiError(404, "blob_not_found", "You have no asset with this hash.")
