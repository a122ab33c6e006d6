"""The parts of one HTTP replica. Each route uses only the parts that it needs.

`assembly.py` builds the parts. A route declares a part as a FastAPI dependency, such as
`access: JobAccessDep`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from fastapi import Depends, Request
from starlette.requests import HTTPConnection

from engine.interface import Catalogue
from events.bus.queues import CallbackQueue, JobQueue
from events.callback_address import AddressRule
from events.log import EventLog
from events.result import UrlFor
from events.store.records import ApiKey
from events.types import CallbackAttempted
from serve_app.acceptance.acceptance import Acceptance, LogHealth
from serve_app.acceptance.resubmission import Resubmission
from serve_app.access.api_keys import Authenticator
from serve_app.access.owner_limits import OwnerLimits, Waits
from serve_app.access.rates import Rates, TokenBuckets
from serve_app.access.refusal_log import RefusalLog
from serve_app.answers import PageCache
from serve_app.bodies import Bodies
from serve_app.endpoints.administration import EndpointAdministration
from serve_app.endpoints.cache import EndpointCache
from serve_app.fair_threads import FairSemaphore
from serve_app.jobs import Jobs
from serve_app.live.progress import LatestPreviews, ProgressBoard
from serve_app.live.projected import ProjectionWaiter
from serve_app.live.queue_positions import QueuePositions
from serve_app.live.streams import Streams
from serve_app.setup_warnings import SetupWarnings
from serve_app.upload_store import UploadStore
from telemetry.api_metrics import ApiMetrics

if TYPE_CHECKING:
    # Routes import this module. At run time only `assembly.py` loads SQLAlchemy and obstore.
    from events.store.ended_jobs import EndedJobs
    from events.store.keys import ApiKeys, KeyOptions
    from events.store.read_model import ReadModel
    from events.store.uploads import Uploads
    from events.store.user_files import UserFiles
    from serve_app.workflows.named import NamedWorkflows
    from storage.images import ImageStore


@dataclass(frozen=True, kw_only=True)
class Callers:
    """Identifies callers and limits their rates."""

    authenticator: Authenticator
    rates: Rates
    refusal_log: RefusalLog


@dataclass(frozen=True, kw_only=True)
class Submission:
    """Accepts jobs and uploads."""

    acceptance: Acceptance
    owner_limits: OwnerLimits
    bodies: Bodies
    uploads: UploadStore
    catalogue: Catalogue
    workflows: NamedWorkflows


@dataclass(frozen=True, kw_only=True)
class Files:
    """Reads stored files, and builds their URLs."""

    images: ImageStore
    url_for: UrlFor
    public_url: str
    secret: bytes
    """The key that signs the tokens in image URLs."""
    image_url_s: float
    """Seconds for which an image URL is valid; 0 means no limit."""
    job_days: float
    """Days for which a job and its images are kept; 0 means no limit."""
    upload_days: float
    """Days for which an unused upload is kept; 0 means no limit."""


@dataclass(frozen=True, kw_only=True)
class Live:
    """Follows open jobs."""

    progress: ProgressBoard
    previews: LatestPreviews
    queue_positions: QueuePositions
    streams: Streams


@dataclass(frozen=True, kw_only=True)
class JobAccess:
    """Finds jobs, uploads and files, and follows and cancels the caller's jobs."""

    jobs: Jobs
    read_model: ReadModel
    projected: ProjectionWaiter
    deliveries: EventLog
    uploads: Uploads
    files: Files
    live: Live
    catalogue: Catalogue
    bodies: Bodies
    list_turns: FairSemaphore
    """Limits how many large answers are built at a time (see `answers.py`)."""
    node_types: PageCache
    waits: Waits


@dataclass(frozen=True, kw_only=True)
class CallbackAccess:
    """Shows and repeats deliveries, and sends sample callbacks."""

    jobs: Jobs
    deliveries: EventLog
    read_model: ReadModel
    ended_jobs: EndedJobs
    queue: CallbackQueue
    address_rule: AddressRule
    max_redeliveries: int
    """The largest number of redeliveries of one job; 0 means no limit."""
    send_sample: Callable[[str, ApiKey], Awaitable[CallbackAttempted]]
    """Sends a sample callback to an address. Raises AddressNotAllowed."""
    samples: TokenBuckets
    """Limits how often each owner may send a sample."""
    samples_per_minute: float
    """The most samples that this replica sends for one owner per minute."""


@dataclass(frozen=True, kw_only=True)
class Administration:
    """Administers endpoints, API keys, and the jobs of all owners."""

    jobs: Jobs
    read_model: ReadModel
    resubmission: Resubmission
    keys: ApiKeys
    authenticator: Authenticator
    endpoints: EndpointAdministration
    endpoint_cache: EndpointCache
    queue: JobQueue
    bodies: Bodies
    secret: bytes
    """The key from which webhook secrets are derived."""


@dataclass(frozen=True, kw_only=True)
class Replica:
    """All parts of one replica."""

    callers: Callers
    submission: Submission
    job_access: JobAccess
    callback_access: CallbackAccess
    administration: Administration
    key_options: KeyOptions
    user_files: UserFiles
    health: LogHealth
    setup_warnings: SetupWarnings
    metrics: ApiMetrics
    stop: Callable[[], Awaitable[None]]
    """Ends the tasks and threads of all parts."""


def replica_of(connection: HTTPConnection) -> Replica:
    replica: Replica = connection.app.state.replica
    return replica


def _part(name: str) -> Any:
    """Return the dependency for a part. It is async, because FastAPI runs others in threads."""

    async def part(request: Request) -> Any:
        return getattr(replica_of(request), name)

    return Depends(part)


SubmissionDep = Annotated[Submission, _part("submission")]
JobAccessDep = Annotated[JobAccess, _part("job_access")]
CallbackAccessDep = Annotated[CallbackAccess, _part("callback_access")]
AdministrationDep = Annotated[Administration, _part("administration")]
if TYPE_CHECKING:
    KeyOptionsDep: TypeAlias = KeyOptions
    UserFilesDep: TypeAlias = UserFiles
else:
    KeyOptionsDep = Annotated[Any, _part("key_options")]
    UserFilesDep = Annotated[Any, _part("user_files")]
LogHealthDep = Annotated[LogHealth, _part("health")]
SetupWarningsDep = Annotated[SetupWarnings, _part("setup_warnings")]
ApiMetricsDep = Annotated[ApiMetrics, _part("metrics")]
