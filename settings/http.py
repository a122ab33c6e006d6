"""Settings of the HTTP API: its address, its limits, and the protocols that it implements."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationInfo,
)
from pydantic_settings import SettingsConfigDict

from settings.constant import constant
from settings.fields import Names
from settings.group import Group

SILENCE_TIMEOUT_S = constant("SILENCE_TIMEOUT_S", 30.0)
"""The longest time in seconds in which a client may send nothing of a body, or receive less than
256 kB of a file. HAProxy and the replicas both apply this limit, except while a client waits for an
answer.
"""
MAX_WAIT_S = constant("MAX_WAIT_S", 60.0)
"""The longest time in seconds that a request for a result may wait for the end of its job."""

MAX_REPLICA_REQUESTS = constant("MAX_REPLICA_REQUESTS", 4096)
"""The most requests that one replica serves at the same time. Each event stream, websocket and
request that waits for a result counts. A replica has at most 2000 streams and websockets, so at
least half of the requests may be others.
"""

REPLICA_BUFFER_BYTES = 65_536
"""The size of the kernel's buffers between HAProxy and a replica for answers that wait for a slow
caller: one of the replica and one of HAProxy. Linux doubles it.
"""


class HttpSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_")

    host: str = "127.0.0.1"
    """The address on which the HTTP API and `darkroom up` listen."""
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    """The port on which the HTTP API listens."""
    public_url: str | None = None
    """The base of the image URLs in results. If unset, the base is made from host and port."""
    docs: bool = True
    """Whether `/docs` (a page to try the API) and `/openapi.json` are served."""
    console: bool = True
    """Whether the console, a web page for users, is served at `/`."""
    cors_origins: Names = ()
    """The origins whose pages may call the API from a browser (`https://app.example`), or `*` for
    all. By default no origin is allowed, because every visitor of such a page can read the API key
    in the page.
    """
    log_requests: bool = False
    """Whether the log has a line for each request: method, route, status, time and `X-Request-ID`.
    `darkroom up --log` turns it on."""
    image_url_ttl_s: Annotated[float, Field(ge=0, le=10 * 366 * 86400)] = 0.0
    """The time in seconds for which the URL of an image is valid; 0 means no limit. Each response
    and callback has a new URL.
    """
    replicas: PositiveInt | None = Field(None, validation_alias="DARKROOM_HTTP_REPLICAS")
    """The number of processes that serve the HTTP API. Each process needs about 120 MB. If unset,
    there are 2 on a machine with two or more cores, so that one process answers while the other
    restarts.
    """
    max_connections_per_address: NonNegativeInt = 1024
    """The largest number of connections that one address, or one /64 network of IPv6, may have at
    the same time; 0 means no limit. Set 0 behind a proxy or load balancer, where all callers have
    the same address.
    """
    max_body_bytes: PositiveInt = 512 * 1024
    """The largest size of a request body in bytes, not counting its inline images."""
    max_upload_bytes: PositiveInt = 20 * 1024**2
    """The largest size of an uploaded file in bytes."""
    fetch_images: bool = Field(True, validation_alias="DARKROOM_FETCH_ENABLED")
    """Whether an input image may be an https URL, from which the service fetches the image. The
    settings of callbacks determine which addresses are allowed.
    """

    @property
    def netloc(self) -> str:
        """Host and port, as they appear in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def effective_public_url(self) -> str:
        return (self.public_url or f"http://{self.netloc}").rstrip("/")


RootPage: TypeAlias = Literal["console", "comfyui"]


def _served(page: RootPage, others: ValidationInfo) -> RootPage:
    if page == "comfyui" and not others.data.get("comfyui", True):
        raise ValueError("comfyui needs DARKROOM_ADAPTER_COMFYUI to be true")
    return page


class ProtocolSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_ADAPTER_")

    comfyui: bool = True
    """Whether ComfyUI's own API is served at the root: `/prompt`, `/queue`, `/history`, `/view`,
    `/ws` and the other routes of its clients.
    """
    comfy_v2: bool = True
    """Whether Comfy API v2 is served below `/api/v2`."""
    webui: bool = True
    """Whether the WebUI's API is served below `/sdapi/v1`."""
    openai: bool = True
    """Whether OpenAI's images API is served below `/v1/images`."""
    mcp: bool = True
    """Whether the Model Context Protocol is served at `/mcp`."""
    root_page: Annotated[
        RootPage, Field(validation_alias="DARKROOM_ROOT_PAGE"), AfterValidator(_served)
    ] = "console"
    """The page at `/`: the `console`, or ComfyUI's own page (`comfyui`). The console is also at
    `/console`.
    """
