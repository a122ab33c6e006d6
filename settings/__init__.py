"""Every value an operator may set, read from `DARKROOM_*` environment variables."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, SecretStr
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict


def _split_list(value: Any) -> Any:
    """A JSON list or commas: `["10.0.0.0/8"]` and `10.0.0.0/8,127.0.0.0/8` mean the same."""
    if not isinstance(value, str):
        return value
    return [part.strip().strip("\"'") for part in value.strip(" []").split(",") if part.strip()]


Networks = Annotated[
    tuple[IPv4Network | IPv6Network, ...], NoDecode, BeforeValidator(_split_list)
]
Ports = Annotated[tuple[int, ...], NoDecode, BeforeValidator(_split_list)]


class Settings(BaseSettings):
    """Times are in seconds and sizes in bytes, as the names say."""

    model_config = SettingsConfigDict(env_prefix="DARKROOM_", frozen=True, extra="ignore")

    # Where things are.
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    data_dir: Path = Path("data")
    models_dir: Path = Path("models")
    nats_url: str | None = None
    database_url: str | None = None
    images_url: str | None = None
    public_url: str | None = None
    secret: SecretStr | None = None

    # What a request may ask for.
    max_body_bytes: PositiveInt = 512 * 1024
    max_nodes: PositiveInt = 1000
    max_side_px: PositiveInt = 4096
    max_batch: PositiveInt = 16
    max_wait_s: PositiveFloat = 60.0

    # The event log.
    log_max_bytes: PositiveInt = 2 * 1024**3
    log_replicas: PositiveInt = 1
    log_full_ratio: Annotated[float, Field(gt=0, lt=1)] = 0.85
    append_timeout_s: PositiveFloat = 10.0
    append_try_timeout_s: PositiveFloat = 2.0
    ready_period_s: PositiveFloat = 5.0

    # Jobs.
    lease_s: PositiveFloat = 30.0
    lease_renew_s: PositiveFloat = 5.0
    step_timeout_s: PositiveFloat = 120.0
    model_load_timeout_s: PositiveFloat = 600.0
    job_timeout_s: PositiveFloat = 3600.0
    max_attempts: PositiveInt = 3
    jobs_per_actor: Annotated[int, Field(ge=0)] = 0
    """Jobs that one Ray actor runs before it is replaced; 0: 1 with a GPU, 50 without."""
    jobs_per_worker: PositiveInt = 4
    min_workers: PositiveInt = 1
    max_workers: PositiveInt = 1
    worker_cpus: PositiveFloat = 1.0
    worker_gpus: Annotated[float, Field(ge=0)] | None = None
    """GPUs of one worker; unset: 1 where Ray has any, else 0."""
    worker_idle_s: PositiveFloat = 300.0
    placement_timeout_s: PositiveFloat = 900.0
    model_cache_bytes: PositiveInt = 8 * 1024**3
    max_rows: PositiveInt = 32
    default_checkpoint: str | None = None
    """Unset: the first checkpoint of the models folder."""

    # Callbacks.
    callback_allow_networks: Networks = ()
    callback_require_https: bool = False
    callback_ports: Ports = ()
    """Empty: 80, 443 and 1024 up."""
    callback_connect_timeout_s: PositiveFloat = 3.0
    callback_timeout_s: PositiveFloat = 15.0
    callback_max_answer_bytes: PositiveInt = 16 * 1024
    callback_delays_s: Annotated[tuple[float, ...], NoDecode, BeforeValidator(_split_list)] = (
        0.0, 5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0, 10800.0, 21600.0, 43200.0,
    )  # fmt: skip
    callback_jitter: Annotated[float, Field(ge=0, lt=1)] = 0.2
    callback_in_flight: PositiveInt = 256
    callback_per_host: PositiveInt = 4

    # Roles.
    dispatcher_lease_s: PositiveFloat = 6.0
    endpoints_period_s: PositiveFloat = 2.0
    requeue_period_s: PositiveFloat = 60.0
    http_replicas: PositiveInt = 1

    # The embedded start.
    ray_num_gpus: Annotated[int, Field(ge=0)] | None = None
    """GPUs that the local Ray declares; unset: those it finds."""

    @property
    def nats_dir(self) -> Path:
        return self.data_dir / "nats"

    @property
    def effective_database_url(self) -> str:
        """SQLAlchemy URL; a SQLite file in the data folder unless one is given."""
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
        """The key of ids and file tokens. Raises ValueError where none was given or generated."""
        if self.secret is None or len(self.secret.get_secret_value()) < 16:
            raise ValueError("DARKROOM_SECRET is not set, or shorter than 16 characters")
        return self.secret.get_secret_value().encode()
