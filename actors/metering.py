"""The metrics of each role, put together."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from actors.assembly import Messaging
from actors.callbacks.role import Callbacks
from actors.dispatch.dispatcher import Dispatcher
from actors.worker.engine_host import EngineState
from events.delivery_policy import SendResult
from events.job import Job
from events.log import utc_now
from events.store.batch import Step
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
from telemetry.tracing.exporter import open_exporter
from telemetry.tracing.job_traces import JobTraces
from telemetry.tracing.spans import callback_spans

Run: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


def of_router() -> ProcessMetrics:
    return ProcessMetrics("router")


@dataclass(frozen=True, slots=True)
class ResultsMetrics:
    process: ProcessMetrics
    read_model: ReadModel
    """Which counts what it folds."""
    background: Sequence[Run]
    """What runs beside the role."""

    @classmethod
    def of(
        cls,
        settings: TelemetrySettings,
        messaging: Messaging,
        database: Database,
        *,
        says_stores: bool = True,
    ) -> ResultsMetrics:
        """`says_stores`: the sizes of log and archive too, which one process says for all."""
        process = ProcessMetrics("results", look_s=settings.metrics_timeout_s / 2)
        jobs = JobMetrics(process.registry, most_endpoints=settings.metrics_endpoints)
        notes, background = [jobs.note], list[Run]()
        if (exporter := open_exporter(settings, "results")) is not None:
            traces = JobTraces(messaging.log, exporter)
            notes.append(traces.note)
            background += [traces.run, exporter.run]

        def on_folded(steps: Sequence[Step]) -> None:
            for note in notes:
                note(steps)

        read_model = ReadModel(database, streams=messaging.log_streams, on_folded=on_folded)
        if says_stores:
            process.add(LogMetrics(messaging.streams, read_model).look)
            process.add(ArchiveMetrics(database).look)
        return cls(process, read_model, background)


class DispatcherMetrics:
    def __init__(self, settings: TelemetrySettings) -> None:
        self.process = ProcessMetrics("dispatcher", look_s=settings.metrics_timeout_s / 2)
        self._endpoints = EndpointLabels(settings.metrics_endpoints)
        self._engines = EngineMetrics(self.process.registry, endpoints=self._endpoints)
        self.process.add(self._engines.look)

    def note_engine(self, endpoint: str, worker: str, state: EngineState) -> None:
        self._engines.note(worker, endpoint, state.models, state.memory_bytes)

    def note_left(self, endpoint: str) -> None:
        """Another dispatcher has it from now on, or nobody."""
        self._engines.forget(endpoint)

    def watch(self, dispatcher: Dispatcher, messaging: Messaging) -> ProcessMetrics:
        """With what `dispatcher` says of its endpoints."""
        dispatched = DispatchMetrics(
            queue=messaging.queue, statuses=dispatcher.statuses, endpoints=self._endpoints
        )
        self.process.add(dispatched.look)
        return self.process


class DeliveryMetrics:
    def __init__(self, settings: TelemetrySettings) -> None:
        self.process = ProcessMetrics("callbacks")
        self._exporter = open_exporter(settings, "callbacks")
        self.callbacks = CallbackMetrics(self.process.registry, on_try=self._trace)
        self.background: Sequence[Run] = (self._exporter.run,) if self._exporter else ()
        """What runs beside the role."""

    def _trace(self, job: Job, result: SendResult) -> None:
        if self._exporter is not None:
            self._exporter.add(callback_spans(job, result, ended=utc_now()))

    def watch(self, role: Callbacks) -> ProcessMetrics:
        """With the breakers of `role`."""
        self.process.add(Breakers(lambda: role.open_breakers).look)
        return self.process
