"""What holds for an API key that has no limits of its own, and for an owner over all keys."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, PositiveInt
from pydantic_settings import SettingsConfigDict

from settings.fields import HostPatterns, Names
from settings.group import Group

ImageFormat: TypeAlias = Literal["png", "webp", "jpeg"]
"""Of the files that images are stored as."""
LONGEST_GRACE_S = 366 * 86400.0
"""The longest that an old key may still work after a rotation."""


class KeySettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_KEY_")

    cache_s: Annotated[float, Field(gt=0, lt=10)] = 5.0
    """How long a replica remembers a key, and so how long a revoked key may still work."""
    rotation_grace_s: Annotated[float, Field(ge=0, le=LONGEST_GRACE_S)] = 7 * 86400.0
    """How long the old key still works after a rotation."""
    rate_per_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """How many requests per second a key may make if it has no rate of its own; 0 is any number."""
    burst: PositiveInt = 20
    """How many requests a key may make at once after a pause if it has no burst of its own."""
    max_open_jobs: Annotated[int, Field(ge=0)] = 0
    """How many jobs of a key may wait or run if it has no number of its own; 0 is any number."""
    max_cost: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """The most megapixel-steps that a job of a key may cost if it has no number of its own; 0 is
    as many as its endpoint takes."""
    embed_metadata: bool = True
    """Whether the images of a key that does not say it tell how they were made: graph, prompt and
    seed."""
    image_format: ImageFormat = "png"
    """The format of the images of a key that has none of its own, where a request names none:
    `png`, `webp` or `jpeg`."""
    image_quality: Annotated[int, Field(ge=1, le=100)] = 90
    """The quality of WebP and JPEG images where neither request nor key name one; a WebP of 100 is
    lossless."""
    endpoints: Names = ("*",)
    """The endpoints that a key may use if it has no list of its own; `*` is all of them."""
    callback_hosts: HostPatterns = ("*",)
    """The hosts that a key may have called back if it has no list of its own; `*.example.com` is
    every name below it."""
    refusal_lines_per_s: Annotated[int, Field(ge=0)] = 10
    """How many refused keys a replica logs a second, each in a line of its own; the others are
    counted in one more line. 0 is any number of lines."""


class OwnerSettings(Group):
    """The limits of an owner over all of their keys; the limits of a key hold beside them."""

    model_config = SettingsConfigDict(env_prefix="DARKROOM_OWNER_")

    rate_per_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 100.0
    """How many requests per second an owner may make; 0 is any number. One that waits is one."""
    burst: PositiveInt = 500
    """How many requests an owner may make at once after a pause."""
    max_open_jobs: Annotated[int, Field(ge=0)] = 2000
    """How many jobs of an owner may wait or run; 0 is any number."""
    max_running_jobs: Annotated[int, Field(ge=0)] = 0
    """How many jobs of an owner may run at once, on all endpoints; 0 is any number. Several
    dispatchers may be above it for a moment."""
    max_endpoints: Annotated[int, Field(ge=0)] = 2
    """How many endpoints an owner may make; 0 is any number."""
    max_endpoint_gpus: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2.0
    """How many GPUs the workers of all endpoints of an owner may take together, at their largest
    numbers; 0 is any number."""
    max_endpoint_cpus: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 8.0
    """How many CPUs they may take; 0 is any number."""
    max_jobs_per_worker: Annotated[int, Field(ge=0)] = 16
    """How many jobs at once an owner may ask of a worker, each of which takes a process and some
    100 MiB; 0 is any number."""
    may_keep_workers: bool = False
    """Whether an endpoint of an owner may have workers while nobody uses it: `min_workers` above 0,
    or idle for longer than `DARKROOM_WORKER_IDLE_S`."""
    max_waits: Annotated[int, Field(ge=0)] = 512
    """How many requests of an owner may wait for a result at the same time in one HTTP process; 0
    is any number."""
    max_streams: Annotated[int, Field(ge=0)] = 256
    """How many event streams of an owner one HTTP process holds at the same time; 0 is any
    number."""
    max_log_bytes: Annotated[int, Field(ge=0)] = 512 * 1024**2
    """How many bytes of the event log an owner's jobs may take, until they move to the archive; 0
    is any number."""
    max_result_bytes: Annotated[int, Field(ge=0)] = 20 * 1024**3
    """How many bytes of images and archived events an owner's jobs may keep before new jobs are
    refused; 0 is any number."""
    max_upload_bytes: Annotated[int, Field(ge=0)] = 2 * 1024**3
    """How many bytes the uploads of an owner may take; 0 is any number."""
    slots_kept_free: Annotated[int, Field(ge=0)] = 1
    """How many free slots of an endpoint only an owner takes who runs nothing there; 0 is none. An
    endpoint with one job per worker keeps none free."""
