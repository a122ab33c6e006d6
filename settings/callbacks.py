"""The addresses to which callbacks and images may be sent, and the delays between attempts."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from settings.fields import Networks, Ports, ProxyUrl, Seconds
from settings.group import Group


class CallbackSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_CALLBACK_")

    allow_networks: Networks = ()
    """The networks to which callbacks may be sent in addition to public addresses, as a JSON list
    or separated by commas.
    """
    deny_networks: Networks = ()
    """The networks to which no callback is sent, even if they are public or allowed. The addresses
    on which this service itself listens are always denied.
    """
    require_https: bool = False
    """Whether callback addresses without TLS are refused."""
    ports: Ports = ()
    """The ports to which callbacks may be sent. If the list is empty, 80, 443 and all ports from
    1024 are allowed.
    """
    proxy: ProxyUrl = None
    """The proxy for callbacks (`http://[user:password@]host:port`). The proxy must support
    CONNECT.
    """
    delays_s: Seconds = (0, 5, 30, 120, 600, 1800, 3600, 10800, 21600, 43200)
    """The pauses in seconds before each attempt, beginning with the first."""
    presigned_uploads: bool = Field(True, validation_alias="DARKROOM_IMAGE_PUT_ENABLED")
    """Whether a request may have `image_put_urls`, to which its images are sent by PUT."""
