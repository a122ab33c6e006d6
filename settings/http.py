"""The HTTP API, and what it takes of a caller."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt
from pydantic_settings import SettingsConfigDict

from settings.group import Group


class HttpSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_")

    host: str = "127.0.0.1"
    """Address that the HTTP API listens on."""
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    """Port that the HTTP API listens on."""
    public_url: str | None = None
    """Base of the image URLs in results; unset: host and port."""
    replicas: PositiveInt = Field(1, validation_alias="DARKROOM_HTTP_REPLICAS")
    """HTTP processes."""
    max_body_bytes: PositiveInt = 512 * 1024
    """Longest request body."""
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
    log_full_ratio: Annotated[float, Field(gt=0, lt=1)] = 0.85
    """From this fill on nothing new is accepted; the rest is for accepted jobs."""
    ready_period_s: PositiveFloat = 5.0
    """How long an answer of `/health/ready` is kept."""

    @property
    def effective_public_url(self) -> str:
        return (self.public_url or f"http://{self.host}:{self.port}").rstrip("/")
