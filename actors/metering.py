"""The metrics of each role, put together."""

from __future__ import annotations

from dataclasses import dataclass

from actors.assembly import Messaging
from actors.callbacks.role import Callbacks
from actors.dispatch.dispatcher import Dispatcher
from actors.worker.engine_host import EngineState
from events.store.database import Database
from events.store.read_model import ReadModel
from settings.log import TelemetrySettings
from telemetry.callback_metrics import Breakers, CallbackMetrics
from telemetry.dispatch_metrics import DispatchMetrics
from telemetry.engine_metrics import EngineMetrics
from telemetry.exposition import ProcessMetrics
from telemetry.job_metrics import JobMetrics
from telemetry.labels import EndpointLabels
from telemetry.store_metrics import ArchiveMetrics, LogMetrics


def of_router() -> ProcessMetrics:
    return ProcessMetrics("router")


@dataclass(frozen=True, slots=True)
class ResultsMetrics:
    process: ProcessMetrics
    read_model: ReadModel
    """Which counts what it folds."""

    @classmethod
    def of(
        cls, settings: TelemetrySettings, messaging: Messaging, database: Database
    ) -> ResultsMetrics:
        process = ProcessMetrics("results", look_s=settings.metrics_timeout_s / 2)
        jobs = JobMetrics(process.registry, most_endpoints=settings.metrics_endpoints)
        read_model = ReadModel(database, on_folded=jobs.note)
        process.add(LogMetrics(messaging.streams, read_model).look)
        process.add(ArchiveMetrics(database).look)
        return cls(process, read_model)


class DispatcherMetrics:
    def __init__(self, settings: TelemetrySettings) -> None:
        self.process = ProcessMetrics("dispatcher", look_s=settings.metrics_timeout_s / 2)
        self._endpoints = EndpointLabels(settings.metrics_endpoints)
        self._engines = EngineMetrics(self.process.registry, endpoints=self._endpoints)
        self.process.add(self._engines.look)

    def note_engine(self, endpoint: str, worker: str, state: EngineState) -> None:
        self._engines.note(worker, endpoint, state.models, state.memory_bytes)

    def watch(self, dispatcher: Dispatcher, messaging: Messaging) -> ProcessMetrics:
        """With what `dispatcher` says of its endpoints."""
        dispatched = DispatchMetrics(
            queue=messaging.queue, statuses=dispatcher.statuses, endpoints=self._endpoints
        )
        self.process.add(dispatched.look)
        return self.process


class DeliveryMetrics:
    def __init__(self) -> None:
        self.process = ProcessMetrics("callbacks")
        self.callbacks = CallbackMetrics(self.process.registry)

    def watch(self, role: Callbacks) -> ProcessMetrics:
        """With the breakers of `role`."""
        self.process.add(Breakers(lambda: role.open_breakers).look)
        return self.process
