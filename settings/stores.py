"""Settings of the places where state is stored, and the secret of this service."""

from __future__ import annotations

from pathlib import Path

from pydantic import PositiveInt, SecretStr
from pydantic_settings import SettingsConfigDict

from settings.group import Group

SQLITE_FILE = "darkroom.sqlite3"
"""The name of the database file in the data folder."""


class StoreSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_")

    data_dir: Path = Path("data")
    """The folder of all state: event log, database, images and keys."""
    models_dir: Path = Path("models")
    """The folder of the models, in the layout of ComfyUI. The models must be the same on every
    node.
    """
    database_url: SecretStr | None = None
    """The SQLAlchemy URL of the database (`postgresql+asyncpg://…`). If unset, the database is
    SQLite in the data folder.
    """
    database_connections: PositiveInt = 10
    """The largest number of connections of one process to the database. Each HTTP process and each
    role may open this number, and Postgres must accept the sum.
    """
    images_url: str | None = None
    """The URL of the image store (`file:///…`, `s3://…`, `gs://…`, `az://…`). If unset, images are
    stored in the data folder.
    """
    secret: SecretStr | None = None
    """The secret from which ids, file tokens and webhook secrets are derived. If unset, `darkroom
    up` generates a secret and stores it in `<data>/secret`.
    """

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
        """Return the secret. Raises ValueError if it is unset or has fewer than 16 characters."""
        if self.secret is None or len(self.secret.get_secret_value()) < 16:
            raise ValueError("DARKROOM_SECRET is not set, or has fewer than 16 characters")
        return self.secret.get_secret_value().encode()
