"""What the HTTP API is reached at, what it accepts, and which protocols of others it speaks."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
)
from pydantic_settings import SettingsConfigDict

from settings.fields import Names
from settings.group import Group


class HttpSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_")

    host: str = "127.0.0.1"
    """The address that the HTTP API listens on. `darkroom up` listens on 127.0.0.1, too."""
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    """The port that the HTTP API listens on."""
    public_url: str | None = None
    """The base of the image URLs in results; if unset, it is made from host and port."""
    docs: bool = True
    """Whether `/docs`, a page to try the API out, and `/openapi.json` are served."""
    console: bool = True
    """Whether the console, a page for people, is served at `/`."""
    cors_origins: Names = ()
    """The origins whose pages may call the API from a browser (`https://app.example`), or `*`; none
    by default, for whoever reads such a page can read the key in it."""
    log_requests: bool = False
    """Whether the log has a line for each request: method, route, status, time and `X-Request-ID`.
    `darkroom up --log` turns it on."""
    image_url_ttl_s: Annotated[float, Field(ge=0, le=10 * 366 * 86400)] = 0.0
    """How long an image's URL works after it was answered or called back, a new one being in each
    answer; 0 is as long as the image is kept."""
    replicas: PositiveInt | None = Field(None, validation_alias="DARKROOM_HTTP_REPLICAS")
    """How many processes serve the HTTP API, each of some 120 MB; if unset, 2 where the application
    starts on two cores or more, so that one answers while another is started again."""
    max_connections: PositiveInt = 8192
    """How many connections callers have at the same time; more wait until one ends."""
    max_connections_per_address: NonNegativeInt = 1024
    """How many of them one address has, or one /64 network of IPv6; 0 is any number. Behind a proxy
    or load balancer, where all callers have one address, set it to 0."""
    header_timeout_s: PositiveFloat = 10.0
    """How long a caller may take to send the head of a request."""
    idle_timeout_s: PositiveFloat = 30.0
    """How long a connection may stay open between two requests."""
    silence_timeout_s: PositiveFloat = 30.0
    """How long a caller may send nothing of a body, or take nothing of an answer, or less than 256
    kB of a file. Whoever waits for an answer, or for the next event, has nothing to send."""
    max_body_bytes: PositiveInt = 512 * 1024
    """The longest request body that is accepted, without the images in it."""
    max_image_body_bytes: PositiveInt = 16 * 1024**2
    """The longest body that is accepted where images may be part of it, in base64 or as a form."""
    max_inline_bytes: NonNegativeInt = 4 * 1024**2
    """How many bytes of images a result may have in it, where that was asked for; of the others it
    has the URL alone."""
    max_websocket_message_bytes: PositiveInt = 64 * 1024
    """The longest message that a client may send on a websocket; a longer one closes it."""
    max_wait_s: PositiveFloat = 60.0
    """How long a call for a result may wait for the end of its job."""
    max_streams: PositiveInt = 2000
    """How many event streams one HTTP process holds at the same time; another one gets 429."""
    stream_keep_alive_s: PositiveFloat = 10.0
    """How long a stream may be silent before it says that it is still there. Proxies in front close
    what is silent for longer than they wait."""
    stream_send_timeout_s: PositiveFloat = 10.0
    """How long the reader of a stream may take nothing of it before it is cut off."""
    stream_buffer_events: PositiveInt = 500
    """How many events may wait for the reader of a stream before it is cut off."""
    stream_replay_events: PositiveInt = 10_000
    """How many events of the service a cursor of all jobs may be behind; so many of them are kept
    in memory while there are streams, each of some 2 kB."""
    stream_archive_reads: PositiveInt = 2
    """How many cursors that lead into the archive one HTTP process reads at the same time; one of
    several is kept for other owners. Others wait for `DARKROOM_BODY_WAIT_S`, then get 503."""
    stream_max_s: PositiveFloat = 3600.0
    """How long a stream lasts; then it ends, and its reader goes on with another one."""
    max_upload_bytes: PositiveInt = 20 * 1024**2
    """The largest file that may be uploaded as an input image."""
    max_upload_pixels: PositiveInt = 2**25
    """The most pixels that an input image may have."""
    max_upload_name_chars: PositiveInt = 255
    """The longest file name that an input image may have."""
    upload_decodes: PositiveInt = 2
    """How many uploads one HTTP process decodes at the same time; one of several is kept for other
    owners."""
    max_held_body_bytes: PositiveInt = 128 * 1024**2
    """How many bytes of bodies one HTTP process reads and holds at the same time, half of them of
    one owner at most. Others wait for their turn; bodies of up to 16 kB need none."""
    body_wait_s: PositiveFloat = 10.0
    """How long a body waits for its turn to be read or checked before it gets 503."""
    body_grace_s: PositiveFloat = 10.0
    """How long the beginning of a body may take, and how far it may fall behind its lowest rate."""
    min_body_bytes_per_s: PositiveFloat = 32 * 1024
    """The lowest rate at which a body may come; a slower one gets 408."""
    unread_body_s: NonNegativeFloat = 3.0
    """How long what is left of a body is taken, and thrown away, once its request was refused.
    Then the connection is closed; callers who still send may lose the answer with it."""
    max_unread_body_bytes: NonNegativeInt = 64 * 1024**2
    """How much of it is taken."""
    max_unread_bodies: NonNegativeInt = 100
    """Of how many requests one HTTP process does so at the same time; the connections of others are
    closed at once."""
    body_checks: PositiveInt = 2
    """How many large bodies one HTTP process checks at the same time, beside small ones; one of
    several is kept for other owners."""
    log_full_ratio: Annotated[float, Field(gt=0, lt=1)] = 0.85
    """How full the event log may be before new jobs are refused; the rest of it is for jobs that
    were accepted."""
    log_known_s: PositiveFloat = 10.0
    """How long what the event log last said of its room and of the queues counts while it does not
    answer; after that a submission gets 503."""
    ready_period_s: PositiveFloat = 5.0
    """How long an answer of `/health/ready` is used again."""

    @property
    def netloc(self) -> str:
        """Host and port, as they are in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def effective_public_url(self) -> str:
        return (self.public_url or f"http://{self.netloc}").rstrip("/")


class FetchSettings(Group):
    """How input images are fetched by their URLs.

    Where these may lead is as the settings of callbacks have it.
    """

    model_config = SettingsConfigDict(env_prefix="DARKROOM_FETCH_")

    enabled: bool = True
    """Whether an input image may be an https URL, which is then fetched."""
    timeout_s: PositiveFloat = 20.0
    """How long it may take to fetch all images of one request."""
    connect_timeout_s: PositiveFloat = 3.0
    """How long it may take to connect to the server of an image."""
    max_redirects: NonNegativeInt = 3
    """How many redirects are followed to one image."""
    in_flight: PositiveInt = 8
    """How many images one HTTP process fetches at the same time, each in memory until it is stored;
    others wait for `DARKROOM_BODY_WAIT_S`, then get 503."""
    per_owner: PositiveInt = 4
    """How many of them one owner may have."""


RootPage: TypeAlias = Literal["console", "comfyui"]


def _served(page: RootPage, others: ValidationInfo) -> RootPage:
    if page == "comfyui" and not others.data.get("comfyui", True):
        raise ValueError("comfyui needs DARKROOM_ADAPTER_COMFYUI to be true")
    return page


class AdapterSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_ADAPTER_")

    comfyui: bool = True
    """Whether ComfyUI's own API is served at the root: `/prompt`, `/queue`, `/history`, `/view`,
    `/ws` and what else its clients call."""
    comfy_v2: bool = True
    """Whether Comfy API v2 is served below `/api/v2`."""
    webui: bool = True
    """Whether the WebUI's API is served below `/sdapi/v1`."""
    openai: bool = True
    """Whether OpenAI's images API is served below `/v1/images`."""
    root_page: Annotated[
        RootPage, Field(validation_alias="DARKROOM_ROOT_PAGE"), AfterValidator(_served)
    ] = "console"
    """What a browser finds at `/`: the `console`, or `comfyui`, ComfyUI's own page. The console is
    at `/console`, too."""
    max_body_bytes: PositiveInt = 32 * 1024**2
    """The longest body of a request of these protocols that carries images as text."""
    max_wait_s: PositiveFloat = 600.0
    """How long a request of these protocols that is answered with the pictures themselves waits
    for them. After that its answer names the job, which goes on."""
    max_user_files: PositiveInt = 1000
    """How many files of ComfyUI's page, such as workflows, are kept for an owner, and how many of
    the page's settings."""
    max_user_file_bytes: PositiveInt = 2 * 1024**2
    """The longest of these files, and all values of an owner's settings together."""
    max_user_bytes: PositiveInt = 16 * 1024**2
    """How many bytes of these files and settings the database keeps for an owner."""
