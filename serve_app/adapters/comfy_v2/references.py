"""Asset references in a workflow, and the uploads that they stand for."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from events.log import utc_now
from events.store.records import ApiKey
from serve_app.adapters.comfy_v2.content import OutputAsset, asset_of, upload_of_hash
from serve_app.adapters.comfy_v2.errors import missing_asset
from serve_app.api_error import ApiError
from serve_app.replica import Replica
from storage.keys import copy_name

_TYPE = "__type"
_ASSET = "core/ASSET"
_MOST = 64
"""Different assets of one workflow. Each takes a read of the database, a result also a copy."""


async def name_uploads(replica: Replica, key: ApiKey, workflow: dict[str, Any]) -> None:
    """Put the name of an upload in the place of each reference that is an input of a node.

    A result of a job becomes an upload of its owner, until the job is erased. Raises ApiError 422
    `missing_asset`, and what reading a job and storing an upload raise.
    """
    found = list(_inputs(workflow))
    ids = {_id_of(reference): _hash_in(reference) for _, _, reference in found}
    if len(ids) > _MOST:
        raise missing_asset(f"The workflow names more than {_MOST} assets.")
    names = {id: await _name(replica, key, id, digest) for id, digest in ids.items()}
    for inputs, name, reference in found:
        inputs[name] = names[_id_of(reference)]


async def _name(replica: Replica, key: ApiKey, id: str, digest: str) -> str:
    """The id decides; two uploads of the same bytes that crossed are one, found by its hash."""
    try:
        found = await asset_of(replica, key, id)
    except ApiError as error:
        same = await upload_of_hash(replica.services, key.owner, digest)
        if same is None:
            raise missing_asset(f"There is no asset {id[:100]!r}.") from error
        return same.name
    if not isinstance(found, OutputAsset):
        return found.name
    name = copy_name(found.job.id, found.image.index, found.image.media_type)
    if await replica.services.uploads.use(key.owner, [name], utc_now()):
        return name  # a result never changes
    async with replica.bodies.room(key.owner, found.file.size_bytes):
        data = await replica.services.images.get(found.file.key)
        return (await replica.upload_store.add(key.owner, name, data)).name


def _inputs(workflow: dict[str, Any]) -> Generator[tuple[dict[str, Any], str, dict[str, Any]]]:
    """Each input of a node that is a reference: its inputs, its name, the reference."""
    for node in workflow.values():
        inputs = node.get("inputs") if isinstance(node, dict) else None
        if isinstance(inputs, dict):
            for name, value in inputs.items():
                if isinstance(value, dict) and value.get(_TYPE) == _ASSET:
                    yield inputs, name, value


def _id_of(reference: dict[str, Any]) -> str:
    """Raises ApiError 422."""
    info = reference.get("info")
    id = info.get("id") if isinstance(info, dict) else None
    if not isinstance(id, str):
        raise missing_asset(f"A {_ASSET} has no info.id.")
    return id


def _hash_in(reference: dict[str, Any]) -> str:
    """A hint that may be absent."""
    digest = reference["info"].get("hash")
    return digest if isinstance(digest, str) else ""
