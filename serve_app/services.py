"""What the HTTP edge works with: the log, the stores, the queues and the settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from engine.graph.catalogue import Catalogue
from events.archive.history import History
from events.callback_address import AddressRule, Resolve
from events.log import EventLog, JobWriter
from events.queue import CallbackQueue, JobQueue
from events.result import UrlFor
from events.store.records import ApiKey, Endpoint
from events.streams.contents import LogContents
from events.types import CallbackAttempted
from events.wire.progress import JobProgress
from settings.callbacks import CallbackSettings, ImagePutSettings
from settings.dispatch import DispatchSettings
from settings.graph import GraphSettings
from settings.http import AdapterSettings, FetchSettings, HttpSettings
from settings.keys import KeySettings, OwnerSettings
from settings.retention import RetentionSettings
from storage.images import ImageStore

if TYPE_CHECKING:
    # Types only: the edge is given its database, and loads no SQLAlchemy itself.
    from events.store.adapters.key_options import KeyOptions
    from events.store.adapters.user_files import UserFiles
    from events.store.archiving.hot_jobs import HotJobs
    from events.store.endpoints import Endpoints
    from events.store.keys import ApiKeys
    from events.store.read_model import ReadModel
    from events.store.removal import Removal
    from events.store.uploads import Uploads


class LogHealth(Protocol):
    """The health of the event log. Answers may be some seconds old."""

    async def fill(self) -> float:
        """How much of its `max_bytes` is used, 0..1. Raises LogUnavailable."""

    async def ready(self) -> str | None:
        """None where the log takes writes, else the reason why not. Never raises."""


class ProgressBoard(Protocol):
    """How far running jobs are, as they say it."""

    listeners: list[Callable[[str, JobProgress], None]]
    """Called with the id and the progress of a job, whenever that is told."""

    def get(self, job_id: str, /) -> JobProgress | None:
        """The last that was heard, if anything; from now on the job is heard of for some time."""

    def watching(self, job_id: str | None = None, /) -> AbstractContextManager[None]:
        """Hear of this job, or of all jobs, for as long as the context lasts."""

    async def run(self) -> None:
        """Listen until cancelled."""


class Fetch(Protocol):
    """Fetches an input image."""

    def __call__(self, url: str, *, timeout_s: float) -> Awaitable[bytes]:
        """What is at an https URL. Raises FetchFailed."""


@dataclass(frozen=True, kw_only=True)
class Services:
    http_settings: HttpSettings
    adapter_settings: AdapterSettings
    graph_settings: GraphSettings
    dispatch_settings: DispatchSettings
    key_settings: KeySettings
    owner_settings: OwnerSettings
    callback_settings: CallbackSettings
    image_put_settings: ImagePutSettings
    retention_settings: RetentionSettings
    fetch_settings: FetchSettings
    default_endpoint: Endpoint
    """As the settings have it; its row may have been given something else."""
    secret: bytes
    """Key of ids, file tokens and webhook secrets."""
    url_for: UrlFor
    read_model: ReadModel
    keys: ApiKeys
    endpoints: Endpoints
    uploads: Uploads
    user_files: UserFiles
    key_options: KeyOptions
    images: ImageStore
    removal: Removal
    history: History
    """All events of jobs and of their deliveries, in log and archive."""
    log_contents: LogContents
    """What the log of jobs holds."""
    hot_jobs: HotJobs
    catalogue: Catalogue
    address_rule: AddressRule
    resolve: Resolve
    queue: JobQueue
    callback_queue: CallbackQueue
    send_sample: Callable[[str, ApiKey], Awaitable[CallbackAttempted]]
    """Sends a sample callback to an address. Raises AddressNotAllowed."""
    fetch: Fetch
    health: LogHealth
    endpoint_status: Callable[[str], Coroutine[Any, Any, Mapping[str, Any] | None]]
    """What the dispatcher of an endpoint says of it; None where none answers."""
    progress: ProgressBoard

    @property
    def log(self) -> EventLog:
        return self.history.log

    @property
    def deliveries(self) -> EventLog:
        return self.history.delivery_log

    @cached_property
    def writer(self) -> JobWriter:
        return JobWriter(self.history.log)
