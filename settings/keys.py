"""Default values of API keys, and limits of owners over all their keys."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, PositiveInt
from pydantic_settings import SettingsConfigDict

from settings.fields import HostPatterns
from settings.group import Group

ImageFormat: TypeAlias = Literal["png", "webp", "jpeg"]
"""The format of the files in which images are stored."""
LONGEST_GRACE_S = 366 * 86400.0
"""The longest time in seconds for which an old key may still work after a rotation."""


class KeySettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_KEY_")

    embed_metadata: bool = True
    """Whether images contain their graph, prompt and seed if the key has no value of its own."""
    image_format: ImageFormat = "png"
    """The format of images if neither the request nor the key has one: `png`, `webp` or `jpeg`."""
    callback_hosts: HostPatterns = ("*",)
    """The hosts to which the jobs of a key may send callbacks if the key has no list of its own.
    `*.example.com` means every name below `example.com`.
    """


class OwnerSettings(Group):
    """The limits of an owner over all keys. The limits of each key apply as well."""

    model_config = SettingsConfigDict(env_prefix="DARKROOM_OWNER_")

    rate_per_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 100.0
    """The largest number of requests per second of an owner; 0 means no limit. A request that waits
    for a result counts once.
    """
    burst: PositiveInt = 500
    """The largest number of requests that an owner may send at once after a pause."""
    max_open_jobs: Annotated[int, Field(ge=0)] = 2000
    """The largest number of waiting and running jobs of an owner; 0 means no limit."""
    max_running_jobs: Annotated[int, Field(ge=0)] = 0
    """The largest number of jobs of an owner that run at the same time, on all endpoints together;
    0 means no limit.
    """
    max_endpoints: Annotated[int, Field(ge=0)] = 2
    """The largest number of endpoints of an owner; 0 means no limit."""
    max_endpoint_gpus: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2.0
    """The largest number of GPUs that the workers of all endpoints of an owner may take together; 0
    means no limit. Each endpoint counts with its largest number of workers.
    """
    max_endpoint_cpus: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 8.0
    """The largest number of CPUs that the workers of all endpoints of an owner may take together; 0
    means no limit. Each endpoint counts with its largest number of workers.
    """
    may_keep_workers: bool = False
    """Whether an endpoint of an owner may keep idle workers: a `min_workers` above 0, or an idle
    time longer than `DARKROOM_WORKER_IDLE_S`.
    """
    max_log_bytes: Annotated[int, Field(ge=0)] = 512 * 1024**2
    """The largest size of an owner's jobs in the event log, in bytes; 0 means no limit."""
    max_result_bytes: Annotated[int, Field(ge=0)] = 20 * 1024**3
    """The size in bytes of the images and histories of an owner's jobs at which new jobs are
    refused; 0 means no limit.
    """
    max_upload_bytes: Annotated[int, Field(ge=0)] = 2 * 1024**3
    """The largest size of an owner's uploads in bytes; 0 means no limit."""
    slots_kept_free: Annotated[int, Field(ge=0)] = 1
    """The number of free slots of an endpoint that are reserved for owners who run no job there. An
    endpoint with one job per worker has no reserved slots.
    """
