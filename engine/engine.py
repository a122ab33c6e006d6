"""The engine: one thread owns the device and advances all runs, one device call at a time."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

from engine.activity import Activity, ModelUse, OnActive, ignore_active
from engine.admission import JOB_MEMORY_BYTES, Admission
from engine.batch_limits import BatchLimits
from engine.batcher import BatchedRun, Batcher
from engine.errors import (
    Cancelled,
    DeviceFailed,
    EngineError,
    MachineFailed,
    ModelsUnavailable,
    OutOfMemory,
    is_machine_error,
)
from engine.executor import BODIES, Executor
from engine.graph.declarations import NodeType
from engine.graph.graph import Graph, Node
from engine.graph.models_folder import ModelsFolder
from engine.meter import TYPES, Meter
from engine.options import DeviceOptions, RunOptions
from engine.reports import (
    EngineEvent,
    Errored,
    ErroredNode,
    Finished,
    ImageReady,
    LatentReady,
    Progress,
    ResultReady,
    SavedLatent,
    TextReady,
)
from engine.stages import MOST_SHARED_RUNS, StageClock

if TYPE_CHECKING:
    from engine.diffusion.device import Device

_log = logging.getLogger(__name__)
_Command: TypeAlias = Callable[[], None]
OnEvent: TypeAlias = Callable[[EngineEvent], None]
_STOP_TIMEOUT_S = 60.0
_ADMIT_PERIOD_S = 1.0
_MAX_ROWS = 32
_MOST_NOTES = 50
_ROWS_OF_A_JOB = 2
"""The rows that an image with guidance takes in a UNet call."""
_FEWEST_JOBS = 4
"""The smallest number of jobs to run at once. If one call has too few rows for all of them, the
calls alternate between the jobs, so that a long job does not delay a short one.
"""


class Engine:
    """Runs submitted graphs on one device, several at the same time.

    Creating an engine is cheap; `start` imports torch.

    `max_rows` is the largest number of rows in one UNet call. A call has fewer rows when memory is
    short. A run waits while the runs on the device and this run together would need more than
    `job_memory_bytes`. Other runs wait for an exclusive run for at most `exclusive_s`. A run
    reports `Progress` at most once in `progress_period_s`, and always at its last step.
    `more_nodes` are the node types of installed packages.
    """

    def __init__(
        self,
        *,
        models: ModelsFolder,
        options: DeviceOptions = DeviceOptions(),  # noqa: B008 - frozen
        max_rows: int = _MAX_ROWS,
        job_memory_bytes: int = JOB_MEMORY_BYTES,
        exclusive_s: float = math.inf,
        progress_period_s: float = 0.0,
        more_nodes: Sequence[NodeType] = (),
    ) -> None:
        self._models = models
        self._own_types = {each.class_type: each for each in more_nodes}
        self._own_bodies = {each.class_type: each.body for each in more_nodes}
        self._options = options
        self._max_rows = max_rows
        self._progress_period_s = progress_period_s
        self._batcher = Batcher()
        self._device: Device | None = None
        self._inbox: SimpleQueue[_Command] = SimpleQueue()
        self._admission: Admission[Run] = Admission(job_memory_bytes, exclusive_s=exclusive_s)
        self._waiting: set[Run] = set()
        """The runs that wait for the device."""
        self._open: set[Run] = set()
        """The runs that have not ended."""
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._submit_lock = threading.Lock()

    def start(self) -> None:
        """Import torch, open the device and start the thread. This takes some seconds."""
        from engine.diffusion.device import Device

        self._device = Device(self._models, self._options)
        self._batcher.limits = BatchLimits(self._max_rows, self._device.memory_probe)
        self._batcher.free_memory = self._device.free_memory
        self._thread = threading.Thread(target=self._loop, name="device", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after its current device call. Open runs end as cancelled."""
        self._close()
        if self._thread is not None:
            self._thread.join(_STOP_TIMEOUT_S)

    def submit(
        self,
        graph: Graph,
        options: RunOptions = RunOptions(),  # noqa: B008 - frozen
        *,
        on_event: OnEvent,
        on_active: OnActive = ignore_active,
        on_joined: Callable[[], None] = lambda: None,
    ) -> Run:
        """Start a run of a graph without blocking. Any thread may call this method.

        The last event is Finished or Errored. `OnActive` explains `on_active`. `on_joined` is
        called if this run is exclusive and another run starts beside it. All three are called on
        the device thread, so they must not block.

        Raises EngineError if the engine has stopped.
        """
        run = Run(
            graph,
            options,
            on_event,
            on_active=on_active,
            on_joined=on_joined,
            progress_period_s=self._progress_period_s,
        )
        with self._submit_lock:
            if self._stopped.is_set():
                raise EngineError("the engine has stopped")
            self._open.add(run)
            self._inbox.put(lambda: self._enter(run))
        return run

    def take_result(self, run: Run) -> None:
        """Note that a result of the run was taken. Any thread may call this method."""
        self._inbox.put(lambda: self._note_taken(run))

    def cancel(self, run: Run) -> None:
        """Cancel a run. Any thread may call this method.

        The event Errored(Cancelled) follows unless the run has ended.
        """
        self._inbox.put(lambda: self._leave(run))

    @property
    def has_stopped(self) -> bool:
        return self._stopped.is_set()

    @property
    def activity(self) -> Activity:
        return self._batcher.activity.now

    @property
    def suggested_concurrency(self) -> int:
        """The number of runs that the engine should have at once.

        If no run waits, the rows that fit into a call determine this number. If runs wait and one
        run is exclusive, this is the number of all runs. If runs wait only for memory, this is the
        number of runs that do not wait, and at least 1.
        """
        if self._waiting:
            ahead = 0 if self._admission.has_exclusive else len(self._waiting)
            return max(1, len(self._open) - ahead)
        return self.suggested_concurrency_for(self._batcher.denoise_rows)

    @staticmethod
    def suggested_concurrency_for(rows: int = _MAX_ROWS) -> int:
        """Return the number of jobs to run at once if a UNet call has `rows` rows.

        The number is at least `_FEWEST_JOBS`. Further jobs would only delay the others.
        """
        return max(_FEWEST_JOBS, rows // _ROWS_OF_A_JOB)

    @property
    def model_use(self) -> ModelUse:
        return ModelUse() if self._device is None else self._device.model_use

    def _loop(self) -> None:
        assert self._device is not None
        try:
            with self._device.scope():
                while not self._stopped.is_set():
                    self._admit()
                    self._run_commands()
                    if not self._batcher.idle:
                        self._batcher.step()
        except BaseException:  # noqa: BLE001 - the thread has no caller, so the error is logged
            _log.exception("the device thread ended", extra={"action": "device_end"})
        finally:
            self._batcher.activity.end()
            self._abandon()

    def _run_commands(self) -> None:
        """Run all commands in the inbox. If no run needs the device, first wait for a command."""
        if self._batcher.idle:
            self._batcher.activity.rest()
            try:
                self._inbox.get(timeout=_ADMIT_PERIOD_S if self._waiting else None)()
            except Empty:
                return
        while True:
            try:
                command = self._inbox.get_nowait()
            except Empty:
                return
            command()

    def _close(self) -> None:
        with self._submit_lock:
            self._stopped.set()
        self._inbox.put(_wake)

    def _abandon(self) -> None:
        """End every open run after the end of the loop."""
        self._close()
        for run in list(self._open):
            if run.member is not None:
                self._batcher.leave(run.member)
            self._end(run, Cancelled("the engine was stopped"))

    def _enter(self, run: Run) -> None:
        self._waiting.add(run)
        self._admission.enter(run, run.graph.need_bytes, is_exclusive=run.options.is_exclusive)
        self._admit()
        if run in self._waiting:
            memory = self._admission.memory(self.model_use.held_bytes)
            extra = {"action": "admit", "need_bytes": run.graph.need_bytes, **asdict(memory)}
            _log.info("a run waits for memory or for an exclusive run", extra=extra)

    def _admit(self) -> None:
        while not self._stopped.is_set() and (run := self._admission.admit()) is not None:
            for joined in self._admission.joined:
                joined.on_joined()
            self._waiting.remove(run)
            try:
                self._join(run)
            except Exception as error:  # noqa: BLE001 - the run ends with the error
                self._end(run, error)

    def _join(self, run: Run) -> None:
        assert self._device is not None
        options = run.options

        def on_preview(jpeg: bytes) -> None:
            self._inbox.put(lambda: run.report_preview(jpeg))

        executor = Executor(
            run.graph,
            self._device.context(
                options.limits,
                run.report_steps,
                options.input_files,
                on_preview=on_preview if options.has_previews else None,
                on_note=run.note,
            ),
            on_output=run.report_images,
            on_node=self._batcher.activity.move,
            on_turn=run.note_node,
            is_full=lambda: run.is_full,
            bodies=BODIES | self._own_bodies,
            meter=Meter(run.graph, options.limits, TYPES | self._own_types),
        )
        run.member = BatchedRun(
            executor.run(),
            lambda error: self._end(run, error),
            options.is_unbatched,
            run.on_active,
            run.stages,
        )
        self._batcher.join(run.member)

    def _note_taken(self, run: Run) -> None:
        run.untaken -= 1
        if run.member is not None:
            self._batcher.resume_run(run.member)

    def _leave(self, run: Run) -> None:
        if run.member is not None:
            self._batcher.leave(run.member)
            self._end(run, Cancelled())
        elif run in self._waiting:
            self._waiting.remove(run)
            self._end(run, Cancelled())

    def _end(self, run: Run, error: Exception | None) -> None:
        self._open.discard(run)
        run.member = None
        self._admission.leave(run)
        error = error and self._diagnosed(error)
        if isinstance(error, DeviceFailed) and error.is_lost:
            self._close()  # The device is lost, so every other run would fail as well.
        try:
            run.end(error)
        except Exception:  # noqa: BLE001 - a submitter's callback must not end the device thread
            _log.exception("callback failed", extra={"action": "run_end"})

    def _diagnosed(self, error: Exception) -> Exception:
        """Return the error of a run, or an error with a cause outside the run."""
        if is_machine_error(error) and not isinstance(error, ModelsUnavailable):
            return MachineFailed(f"The machine failed: {error}")
        if isinstance(error, OutOfMemory) and any(each.member for each in list(self._open)):
            return OutOfMemory(str(error), beside_others=True)
        return error if self._device is None else self._device.diagnosed(error)


def _wake() -> None:
    """A command without effect. It ends a blocking read of the inbox."""


class Run:
    """A run of a graph, as `Engine.submit` describes it."""

    def __init__(
        self,
        graph: Graph,
        options: RunOptions,
        on_event: OnEvent,
        *,
        on_active: OnActive = ignore_active,
        on_joined: Callable[[], None] = lambda: None,
        progress_period_s: float = 0.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.graph = graph
        self.options = options
        self.on_active = on_active
        self.on_joined = on_joined
        self.member: BatchedRun | None = None
        """The run in the batch while it is on the device."""
        self.untaken = 0
        """The number of reported results that are not taken. Changed only by the device thread."""
        self.stages = StageClock()
        """The time of each stage of the run. Only the device thread changes this object."""
        self.stages.span_link = options.span_link
        self._on_event = on_event
        self._progress_period_s = progress_period_s
        self._now = now
        self._next_progress_at = now()
        self._next_node_at = now() + progress_period_s
        self._node: Node | None = None
        self._images = _ImageOrder(graph, options.first_index)
        self._steps_done = 0
        self._total_steps = graph.total_steps
        self._images_reported = 0
        self._notes: dict[str, None] = {}
        self._ended = False

    @property
    def is_full(self) -> bool:
        """Whether the number of results that are not yet taken has reached its limit."""
        return 0 < self.options.max_untaken <= self.untaken

    def report_steps(self, count: int) -> None:
        """Report that `count` more sampler steps are done, unless the last report is too recent.

        The last step is always reported, because the work after it may take long.
        """
        self._steps_done += count
        now = self._now()
        if now >= self._next_progress_at or self._steps_done == self._total_steps:
            self._report_progress(now)

    def note_node(self, node: Node) -> None:
        """Note that the node is running.

        Its name is reported if the last report is older than the progress period, and never if the
        progress period is 0.
        """
        self._node = node
        if self._progress_period_s and (now := self._now()) >= self._next_node_at:
            self._report_progress(now)

    def note(self, note: str) -> None:
        """Add a note to the later reports of results and of the end, unless there are many."""
        if len(self._notes) < _MOST_NOTES:
            self._notes[note] = None

    def report_preview(self, jpeg: bytes) -> None:
        self._report(self._progress(jpeg))

    def _report_progress(self, now: float) -> None:
        self._next_progress_at = self._next_node_at = now + self._progress_period_s
        self._report(self._progress())

    def _progress(self, preview: bytes | None = None) -> Progress:
        return Progress(
            self._steps_done,
            self._total_steps,
            node_id=self._node.id if self._node is not None else "",
            class_type=self._node.class_type if self._node is not None else "",
            rows=self.stages.last_rows,
            images=self._images_reported,
            preview=preview,
        )

    def report_images(self, node_id: str, images: Sequence[Any]) -> None:
        """Report the images of an output node, (height, width, 3 or 4) uint8, or its latents or
        texts.
        """
        for ready in self._images.add(node_id, images):
            self._images_reported += 1
            self.untaken += 1
            self._report(replace(ready, notes=tuple(self._notes)))

    def end(self, error: Exception | None) -> None:
        if error is None:
            last: EngineEvent = self._finished()
        elif isinstance(error, EngineError):
            last = Errored(error, self._errored_node(error))
        else:
            last = Errored(EngineError(f"{type(error).__name__}: {error}"))
        self._report(last)
        self._ended = True

    def _errored_node(self, error: EngineError) -> ErroredNode | None:
        """Return the node that ran when the error was raised; None if no node was the cause."""
        if self._node is None or isinstance(error, Cancelled):
            return None
        # A node's exception is the cause of the error. An error of the engine is its own cause.
        kind = type(error.__cause__ or error)
        is_plain = kind.__module__ == "builtins" or issubclass(kind, EngineError)
        name = kind.__qualname__ if is_plain else f"{kind.__module__}.{kind.__qualname__}"
        return ErroredNode(self._node.id, self._node.class_type, name)

    def _finished(self) -> Finished:
        stage_s = {str(stage): round(s, 4) for stage, s in self.stages.seconds.items()}
        rows = self.stages.rows_per_call
        return Finished(
            self._images_reported,
            stage_s,
            None if rows is None else round(rows, 2),
            steps=self._steps_done,
            runs_in_shared_calls=tuple(
                sorted(self.stages.runs_in_shared_calls - {self.stages.span_link})
            )[:MOST_SHARED_RUNS],
            notes=tuple(self._notes),
        )

    def _report(self, event: EngineEvent) -> None:
        if not self._ended:
            self._on_event(event)


class _ImageOrder:
    """Numbers the images of a run, with the same result in every attempt, in whatever order nodes
    end.

    Without `first_index`, images are counted in the order of the graph's output nodes. The images
    of a node are then not reported until all earlier output nodes have their images.
    """

    def __init__(self, graph: Graph, first_index: Mapping[str, int] | None) -> None:
        self._graph = graph
        self._first_index = first_index
        self._expected = [node.id for node in graph.outputs]
        self._unreported: dict[str, Sequence[Any]] = {}
        self._next_index = 0
        if first_index is not None and (missing := set(self._expected) - set(first_index)):
            raise ValueError(f"first_index lacks {sorted(missing)}")

    def add(self, node_id: str, images: Sequence[Any]) -> list[ResultReady]:
        """Add the images of a node. Returns the events that can be reported now."""
        if self._first_index is not None:
            return self._numbered(node_id, images, self._first_index[node_id])
        self._unreported[node_id] = images
        ready: list[ResultReady] = []
        while self._expected and self._expected[0] in self._unreported:
            next_id = self._expected.pop(0)
            ready += self._numbered(
                next_id, self._unreported.pop(next_id), self._next_index + len(ready)
            )
        self._next_index += len(ready)
        return ready

    def _numbered(self, node_id: str, images: Sequence[Any], first: int) -> list[ResultReady]:
        seed = self._graph.seed_of(node_id)
        return [_ready(each, index, node_id, seed=seed) for index, each in enumerate(images, first)]


def _ready(result: Any, index: int, node_id: str, *, seed: int | None) -> ResultReady:
    match result:
        case SavedLatent(samples=samples):
            return LatentReady(index, node_id, samples, seed)
        case str():
            return TextReady(index, node_id, result, seed)
        case _:
            return ImageReady(index, node_id, result, seed)
