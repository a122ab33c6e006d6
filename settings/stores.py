"""Where state is kept, and the secret of this service."""

from __future__ import annotations

from pathlib import Path

from pydantic import PositiveFloat, PositiveInt, SecretStr
from pydantic_settings import SettingsConfigDict

from settings.group import Group

SQLITE_FILE = "darkroom.sqlite3"
"""The database in the data folder."""


class StoreSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_")

    data_dir: Path = Path("data")
    """The folder of all state: event log, database, images and keys."""
    models_dir: Path = Path("models")
    """The folder of the models, laid out as ComfyUI's; it must be the same on every node."""
    models_timeout_s: PositiveFloat = 2.0
    """How long the models folder, which may be a network mount, is waited for; after that its last
    listing is used until it answers. Where there is none yet, a new job gets 503, and a job that
    was accepted waits."""
    database_url: SecretStr | None = None
    """The SQLAlchemy URL of the database (`postgresql+asyncpg://…`); if unset, it is SQLite in
    the data folder."""
    database_connections: PositiveInt = 10
    """How many connections to the database one process has at most; what needs another one waits
    for it. The processes of HTTP and of the roles have them: a Postgres must take so many of each.
    """
    images_url: str | None = None
    """Where images are stored (`file:///…`, `s3://…`, `gs://…`, `az://…`); if unset, in the data
    folder."""
    images_retry_s: PositiveFloat = 10.0
    """For how long a request that an object store fails is made again, before HTTP answers 503 and
    a job waits. One that it does not answer ends after 30 s, or what `AWS_TIMEOUT`,
    `GOOGLE_TIMEOUT` or `AZURE_TIMEOUT` says (`10s`)."""
    log_file_bytes: PositiveInt = 10 * 1024**2
    """How large `<data>/logs/darkroom.log` of `darkroom up` becomes before it is moved aside."""
    log_files: PositiveInt = 5
    """How many such files are kept beside it."""
    secret: SecretStr | None = None
    """The secret from which ids, file tokens and webhook secrets are derived; if unset, one is
    generated into `<data>/secret`."""

    @property
    def nats_dir(self) -> Path:
        return self.data_dir / "nats"

    @property
    def effective_database_url(self) -> str:
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite+aiosqlite:///{(self.data_dir / SQLITE_FILE).absolute()}"

    @property
    def effective_images_url(self) -> str:
        return self.images_url or (self.data_dir / "images").absolute().as_uri()

    @property
    def secret_bytes(self) -> bytes:
        """Raises ValueError where no secret was given or generated."""
        if self.secret is None or len(self.secret.get_secret_value()) < 16:
            raise ValueError("DARKROOM_SECRET is not set, or shorter than 16 characters")
        return self.secret.get_secret_value().encode()
