"""Every value an operator may set, read from `DARKROOM_*` environment variables.

`python -m settings` prints the table that the README shows.
"""

from __future__ import annotations

import re
from datetime import timedelta
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    StringConstraints,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict


def _split_list(value: Any) -> Any:
    """A JSON list or commas: `["10.0.0.0/8"]` and `10.0.0.0/8,127.0.0.0/8` mean the same."""
    if not isinstance(value, str):
        return value
    return [part.strip().strip("\"'") for part in value.strip(" []").split(",") if part.strip()]


_PROXY = re.compile(r"http://(?:[^\s/?#@]+@)?[^\s/?#@:]+:[1-9][0-9]{0,4}/?")


def _require_proxy(url: SecretStr | None) -> SecretStr | None:
    if url is not None and not _PROXY.fullmatch(url.get_secret_value()):
        raise ValueError("write the proxy as http://host:port or http://user:password@host:port")
    return url


Networks = Annotated[tuple[IPv4Network | IPv6Network, ...], NoDecode, BeforeValidator(_split_list)]
Ports = Annotated[tuple[int, ...], NoDecode, BeforeValidator(_split_list)]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_list)]
HostPattern = Annotated[
    str,
    StringConstraints(
        max_length=255,
        pattern=r"^(\*|(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|[0-9a-fA-F.]*:[0-9a-fA-F:.]*)$",
        to_lower=True,
    ),
]
"""A host name or address, `*.example.com` for every name below one, or `*` for any."""
HostPatterns = Annotated[tuple[HostPattern, ...], NoDecode, BeforeValidator(_split_list)]
Seconds = Annotated[tuple[float, ...], NoDecode, BeforeValidator(_split_list)]


_DAY_S = 86_400


LONGEST_GRACE_S = 366 * 86400.0
ProxyUrl = Annotated[SecretStr | None, AfterValidator(_require_proxy)]


class Settings(BaseSettings):
    """Times are in seconds (`_s`), sizes in bytes (`_bytes`)."""

    model_config = SettingsConfigDict(
        env_prefix="DARKROOM_",
        frozen=True,
        extra="ignore",
        use_attribute_docstrings=True,
        hide_input_in_errors=True,  # it may be a password
    )

    host: str = "127.0.0.1"
    """Address that the HTTP API listens on."""
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    """Port that the HTTP API listens on."""
    data_dir: Path = Path("data")
    """Folder of all state: event log, database, images, keys."""
    models_dir: Path = Path("models")
    """Models, laid out as ComfyUI's folder; the same on every node."""
    nats_url: str | None = None
    """NATS with JetStream; unset: a nats-server of its own is started."""
    database_url: str | None = None
    """SQLAlchemy URL (`postgresql+asyncpg://…`); unset: SQLite in the data folder."""
    images_url: str | None = None
    """Where images go (`file:///…`, `s3://…`, `gs://…`, `az://…`); unset: the data folder."""
    public_url: str | None = None
    """Base of the image URLs in results; unset: host and port."""
    secret: SecretStr | None = None
    """Key of ids, file tokens and webhook secrets; unset: generated into `<data>/secret`."""
    callback_allow_networks: Networks = ()
    """Networks that callbacks may go to beside public addresses (JSON list or commas)."""

    default_checkpoint: str | None = None
    """Checkpoint of a diffusion job that names none; unset: the first of the models folder."""
    max_body_bytes: PositiveInt = 512 * 1024
    """Longest request body."""
    max_nodes: PositiveInt = 1000
    """Most nodes of a graph."""
    max_prompt_chars: PositiveInt = 32_768
    """Longest text of a node."""
    max_side_px: PositiveInt = 4096
    """Longest side of an image."""
    max_batch: PositiveInt = 16
    """Most images of one batch."""
    max_wait_s: PositiveFloat = 60.0
    """Longest `wait` of a result call."""
    max_upload_bytes: PositiveInt = 20 * 1024**2
    """Largest file that may be uploaded as an input image."""
    max_upload_pixels: PositiveInt = 2**25
    """Most pixels of an input image."""
    max_upload_name_chars: PositiveInt = 255
    """Longest file name of an input image."""
    upload_decodes: PositiveInt = 2
    """Uploads that one HTTP process decodes at once."""

    key_cache_s: Annotated[float, Field(gt=0, lt=10)] = 5.0
    """How long a replica remembers a key; a revocation holds after this."""
    key_rotation_grace_s: Annotated[float, Field(ge=0, le=LONGEST_GRACE_S)] = 7 * 86400.0
    """How long a key still works after its rotation."""
    key_rate_per_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Requests a second of a key that has no rate of its own; 0: any number."""
    key_burst: PositiveInt = 20
    """Requests at once, after a pause, of a key that has no burst of its own."""
    key_max_open_jobs: Annotated[int, Field(ge=0)] = 0
    """Jobs that wait or run of a key that has no number of its own; 0: any number."""
    key_endpoints: Names = ("*",)
    """Endpoints of a key that has no list of its own; `*`: any."""
    key_callback_hosts: HostPatterns = ("*",)
    """The same of hosts that are called back; `*.example.com`: every name below it."""

    log_max_bytes: PositiveInt = 2 * 1024**3
    """Size of the event log; about 1 KB an event."""
    log_replicas: PositiveInt = 1
    """Copies of each stream; 3 on a NATS cluster."""
    log_full_ratio: Annotated[float, Field(gt=0, lt=1)] = 0.85
    """From this fill on nothing new is accepted; the rest is for accepted jobs."""
    append_timeout_s: PositiveFloat = 10.0
    """After this without an answer the outcome of a submission is unknown."""
    append_try_timeout_s: PositiveFloat = 2.0
    """After this without an answer the same event is sent again."""
    ready_period_s: PositiveFloat = 5.0
    """How long an answer of `/health/ready` is kept."""

    job_timeout_s: PositiveFloat = 3600.0
    """A job that has not ended by then fails."""
    max_attempts: PositiveInt = 3
    """Attempts at one job."""
    lease_s: PositiveFloat = 30.0
    """A job whose actor is silent for this long goes to another one."""
    lease_renew_s: PositiveFloat = 5.0
    """How often the lease is renewed."""
    step_timeout_s: PositiveFloat = 120.0
    """An engine without a step for this long is killed."""
    model_load_timeout_s: PositiveFloat = 600.0
    """The same, before a job's first step."""
    min_workers: Annotated[int, Field(ge=0)] = 1
    """Workers that the default endpoint always keeps."""
    max_workers: PositiveInt = 1
    """Most workers of the default endpoint."""
    worker_gpus: Annotated[float, Field(ge=0)] | None = None
    """GPUs of one worker; unset: 1 where Ray has any."""
    worker_cpus: PositiveFloat = 1.0
    """CPUs of one worker, as Ray counts them."""
    jobs_per_worker: PositiveInt = 4
    """Jobs that one worker runs at once."""
    jobs_per_actor: Annotated[int, Field(ge=0)] = 0
    """Jobs that one actor runs before it is replaced; 0: 1 with a GPU, 50 without."""
    worker_idle_s: PositiveFloat = 300.0
    """A worker above the minimum that is idle for this long is closed."""
    precision: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    """Of the UNets' weights on the default endpoint; auto: float16 with a GPU, else float32."""
    channels_last: bool = False
    """UNets of the default endpoint with their channels innermost, for a GPU's tensor cores."""
    compiler: str | None = None
    """Backend of torch.compile for the UNets of the default endpoint (`inductor`); unset: none."""
    engine_threads: Annotated[int, Field(ge=0)] = 0
    """Threads of torch in one engine on a CPU; 0: as many as the machine has cores."""
    max_rows: PositiveInt = 32
    """Most latents in one UNet call."""
    model_cache_bytes: PositiveInt = 8 * 1024**3
    """Models that one engine keeps in memory."""
    text_cache_bytes: PositiveInt = 128 * 1024**2
    """Encoded texts that one engine keeps in memory, beside the models."""
    step_seed_offset: int = 0
    """What is added to the seed for the noise of steps; 1: as newer ComfyUI than 0.3 on a CPU."""

    retention_days: Annotated[float, Field(ge=0)] = 30.0
    """A job that ended so long ago, and its images, are removed; 0: never."""
    upload_retention_days: Annotated[float, Field(ge=0)] = 30.0
    """An upload that no job has named for so long is removed; 0: never."""
    sweep_grace_s: PositiveFloat = 3600.0
    """A file of no job and no upload is removed when it is so old."""
    janitor_period_s: PositiveFloat = 60.0
    """How often it is looked for what must be removed."""

    callback_require_https: bool = False
    """Refuse callback addresses without TLS."""
    callback_ports: Ports = ()
    """Ports that callbacks may go to; empty: 80, 443 and 1024 up."""
    callback_connect_timeout_s: PositiveFloat = 3.0
    """To connect to a receiver."""
    callback_timeout_s: PositiveFloat = 15.0
    """For one whole try."""
    callback_max_answer_bytes: PositiveInt = 16 * 1024
    """Of a receiver's answer this much is read."""
    callback_delays_s: Seconds = (0, 5, 30, 120, 600, 1800, 3600, 10800, 21600, 43200)
    """Pauses before the first and each further try."""
    callback_jitter: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Each pause is longer or shorter by up to this part."""
    callback_in_flight: PositiveInt = 256
    """Deliveries at once."""
    callback_per_host: PositiveInt = 4
    """Deliveries at once to one host."""
    callback_breaker_failures: PositiveInt = 4
    """A host that fails this often in a row is left alone: its breaker opens."""
    callback_breaker_open_s: PositiveFloat = 15.0
    """How long the first time; then one delivery is tried, and each failure doubles it."""
    callback_breaker_longest_s: PositiveFloat = 600.0
    """Longest time that a host is left alone before the next such try."""
    callback_withheld_s: PositiveFloat = 172_800.0
    """A delivery that breakers have kept from its host for this long is given up."""
    callback_secrets: PositiveInt = 3
    """Most signatures of a delivery: its key's, then those of the owner's newest other keys."""
    callback_proxy: ProxyUrl = None
    """Outbound proxy of callbacks (`http://[user:password@]host:port`); it must take CONNECT."""
    callback_tests_per_minute: PositiveInt = 10
    """Test callbacks that one owner may send."""

    http_replicas: PositiveInt = 1
    """HTTP processes."""
    dispatcher_lease_s: PositiveFloat = 6.0
    """After this silence another dispatcher takes over."""
    endpoints_period_s: PositiveFloat = 2.0
    """How often the endpoints' rows are read."""
    requeue_period_s: PositiveFloat = 60.0
    """How often open jobs are compared with the queue."""
    ray_num_gpus: Annotated[int, Field(ge=0)] | None = None
    """GPUs that the local Ray declares; unset: those it finds."""

    @property
    def job_retention(self) -> timedelta | None:
        """How long a job is kept after its end: its callback needs it too. None: for good."""
        callback_s = (1 + self.callback_jitter) * sum(self.callback_delays_s)
        kept_s = max(self.retention_days * _DAY_S, callback_s)
        return timedelta(seconds=kept_s) if self.retention_days else None

    @property
    def upload_retention(self) -> timedelta | None:
        """How long an upload is kept after its last use: a job needs it too. None: for good."""
        kept_s = max(self.upload_retention_days * _DAY_S, self.job_timeout_s)
        return timedelta(seconds=kept_s) if self.upload_retention_days else None

    @property
    def nats_dir(self) -> Path:
        return self.data_dir / "nats"

    @property
    def effective_database_url(self) -> str:
        path = (self.data_dir / "darkroom.sqlite3").absolute()
        return self.database_url or f"sqlite+aiosqlite:///{path}"

    @property
    def effective_images_url(self) -> str:
        return self.images_url or (self.data_dir / "images").absolute().as_uri()

    @property
    def effective_public_url(self) -> str:
        return (self.public_url or f"http://{self.host}:{self.port}").rstrip("/")

    @property
    def secret_bytes(self) -> bytes:
        """Raises ValueError where no secret was given or generated."""
        if self.secret is None or len(self.secret.get_secret_value()) < 16:
            raise ValueError("DARKROOM_SECRET is not set, or shorter than 16 characters")
        return self.secret.get_secret_value().encode()
