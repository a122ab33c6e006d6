"""The engine: one thread owns the device and advances all runs, one device call at a time."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeAlias

from engine.activity import Activity, ModelUse, OnActive, ignore_active
from engine.admission import Admission
from engine.batch_limits import BatchLimits, jobs_in
from engine.batcher import Batcher, Member
from engine.errors import (
    Cancelled,
    DeviceFailed,
    EngineError,
    MachineFailed,
    ModelsUnavailable,
    OutOfMemory,
)
from engine.executor import BODIES, execute
from engine.graph.declarations import NodeType
from engine.graph.graph import Graph
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.machine_error import is_machine_error
from engine.meter import TYPES, Meter
from engine.options import DeviceOptions
from engine.reports import EngineEvent
from engine.run import Run

if TYPE_CHECKING:
    from engine.diffusion.device import Device

_log = logging.getLogger(__name__)
_Command: TypeAlias = Callable[[], None]
_STOP_TIMEOUT_S = 60.0
_ADMIT_PERIOD_S = 1.0


class Engine:
    """Runs graphs on one device, all that are submitted at the same time.

    To make an engine is cheap; `start` imports torch. `max_rows` is the largest number of latents
    in one UNet call; there are fewer when memory is short. `limits` apply during a run as well, for
    the sizes of files and outputs are not known before. Runs wait while they and those that run
    would need more than `job_memory_bytes` together. An exclusive run keeps others back for
    `exclusive_s` at most. A run reports one `Progress` in each `progress_period_s` at most, and its
    last step. `more_nodes` are those of packages.
    """

    def __init__(
        self,
        *,
        models: ModelsFolder,
        options: DeviceOptions = DeviceOptions(),  # noqa: B008 - frozen
        max_rows: int = 32,
        job_memory_bytes: int = 2 * 2**30,
        exclusive_s: float = math.inf,
        progress_period_s: float = 0.0,
        limits: Limits | None = None,
        more_nodes: Sequence[NodeType] = (),
    ) -> None:
        self._models = models
        self._own_types = {each.class_type: each for each in more_nodes}
        self._own_bodies = {each.class_type: each.body for each in more_nodes}
        self._options = options
        self._limits = limits or Limits()
        self._max_rows = max_rows
        self._new_run = partial(
            Run, on_cancel=self._cancel, on_take=self._take, progress_period_s=progress_period_s
        )
        self._batcher = Batcher()
        self._device: Device | None = None
        self._inbox: SimpleQueue[_Command] = SimpleQueue()
        self._admission: Admission[Run] = Admission(job_memory_bytes, exclusive_s=exclusive_s)
        self._waiting: dict[Run, Callable[[], None]] = {}
        """What starts each run that waits for its turn."""
        self._members: dict[Run, Member] = {}
        self._open: dict[Run, Callable[[], None]] = {}
        """The runs that have not ended, and what tells an exclusive one that others are there."""
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
        """Stop the thread after its present device call. Open runs end as cancelled."""
        self._close()
        if self._thread is not None:
            self._thread.join(_STOP_TIMEOUT_S)

    def submit(
        self,
        graph: Graph,
        *,
        on_event: Callable[[EngineEvent], None],
        first_index: Mapping[str, int] | None = None,
        is_alone: bool = False,
        is_exclusive: bool = False,
        input_files: Mapping[str, bytes] | None = None,
        on_active: OnActive = ignore_active,
        on_joined: Callable[[], None] = lambda: None,
        max_untaken: int = 0,
        has_previews: bool = False,
        limits: Limits | None = None,
        name: str = "",
    ) -> Run:
        """Start a run of a graph. Any thread may call this; it never waits for the device.

        `on_event` is called on the device thread, so it must not block. `first_index` has the index
        of each output node's first image; without it, images are counted in the order of the graph.
        A run that `is_alone` shares no device call with others. One that `is_exclusive` starts when
        no other run is left, and no other starts until it has ended or has had its time; then
        `on_joined` is called, on the device thread, and again for each run that starts beside it.
        `input_files` has the bytes of each file that the graph reads. `on_active` is called on the
        device thread, too; see `OnActive`. While a run has `max_untaken` results that were not
        taken by `Run.take_result`, no node of it starts; 0 is any number. One that `has_previews`
        reports now and then what its picture looks like. `limits` hold for it in the place of the
        engine's. `name`: see `StageClock`. Raises EngineError once the engine has stopped.
        """
        new = partial(self._new_run, first_index=first_index, max_untaken=max_untaken)
        run = new(graph, limits or self._limits, on_event, has_previews=has_previews)
        run.stages.name = name
        with self._submit_lock:
            if self._stopped.is_set():
                raise EngineError("the engine has stopped")
            self._open[run] = on_joined
            start = partial(self._join, run, input_files or {}, on_active, is_alone=is_alone)
            self._inbox.put(partial(self._enter, run, start, is_exclusive=is_exclusive))
        return run

    @property
    def has_stopped(self) -> bool:
        """Whether it runs nothing any more, for whatever reason."""
        return self._stopped.is_set()

    @property
    def activity(self) -> Activity:
        """What the device thread does now."""
        return self._batcher.activity.now

    @property
    def jobs(self) -> int:
        """How many runs at once suit it. While some wait, no further ones: those that do not wait,
        or all that are there where an exclusive run keeps them back, for that is over soon.
        """
        if self._waiting:
            ahead = 0 if self._admission.has_exclusive else len(self._waiting)
            return max(1, len(self._open) - ahead)
        return jobs_in(self._batcher.denoise_rows)

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
        except BaseException:  # noqa: BLE001 - the thread has no caller, and the log has it
            _log.exception("the device thread ended", extra={"action": "device_end"})
        finally:
            self._batcher.activity.end()
            self._abandon()

    def _run_commands(self) -> None:
        """Run all commands that have come. Wait for one if no request waits for the device."""
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
        """Accept no more runs, and end the loop. After this no `submit` adds one."""
        with self._submit_lock:
            self._stopped.set()
        self._inbox.put(_wake)

    def _abandon(self) -> None:
        """End every open run, whatever has ended the loop."""
        self._close()
        for run in list(self._open):
            if run in self._members:
                self._batcher.leave(self._members[run])
            self._end(run, Cancelled("the engine was stopped"))

    def _enter(self, run: Run, start: Callable[[], None], *, is_exclusive: bool) -> None:
        self._waiting[run] = start
        self._admission.enter(run, run.graph.need_bytes, is_exclusive=is_exclusive)
        self._admit()
        if run in self._waiting:
            memory = self._admission.memory(self.model_use.held_bytes)
            extra = {"action": "admit", "need_bytes": run.graph.need_bytes, **asdict(memory)}
            _log.info("a run waits for its turn", extra=extra)

    def _admit(self) -> None:
        """Start every run that may start now."""
        while not self._stopped.is_set() and (run := self._admission.admit()) is not None:
            for joined in self._admission.joined:
                self._open[joined]()
            try:
                self._waiting.pop(run)()
            except Exception as error:  # noqa: BLE001 - the run ends with it
                self._end(run, error)

    def _join(
        self, run: Run, input_files: Mapping[str, bytes], on_active: OnActive, *, is_alone: bool
    ) -> None:
        assert self._device is not None
        preview = self._on_preview(run)
        context = self._device.context(
            run.limits, run.report_steps, input_files, on_preview=preview, on_note=run.note
        )
        execution = execute(
            run.graph,
            context,
            on_output=run.report_images,
            on_node=self._batcher.activity.move,
            on_turn=run.note_node,
            is_full=lambda: run.is_full,
            bodies=BODIES | self._own_bodies,
            meter=Meter(run.graph, run.limits, TYPES | self._own_types),
        )
        member = Member(execution, partial(self._end, run), is_alone, on_active, run.stages)
        self._members[run] = member
        self._batcher.join(member)

    def _on_preview(self, run: Run) -> Callable[[bytes], None] | None:
        put = self._inbox.put
        return (lambda it: put(partial(run.report_preview, it))) if run.has_previews else None

    def _take(self, run: Run) -> None:
        self._inbox.put(partial(self._note_taken, run))

    def _note_taken(self, run: Run) -> None:
        run.untaken -= 1
        if run in self._members:
            self._batcher.wake(self._members[run])

    def _cancel(self, run: Run) -> None:
        self._inbox.put(lambda: self._leave(run, Cancelled()))

    def _leave(self, run: Run, error: Cancelled) -> None:
        if run in self._members:
            self._batcher.leave(self._members[run])
            self._end(run, error)
        elif self._waiting.pop(run, None) is not None:
            self._end(run, error)

    def _end(self, run: Run, error: Exception | None) -> None:
        self._open.pop(run, None)
        self._members.pop(run, None)
        self._admission.leave(run)
        error = error and self._diagnosed(error)
        if isinstance(error, DeviceFailed) and error.is_lost:
            self._close()  # or the other runs would fail, too
        try:
            run.end(error)
        except Exception:  # noqa: BLE001 - a submitter's callback must not end the device thread
            _log.exception("callback failed", extra={"action": "run_end"})

    def _diagnosed(self, error: Exception) -> Exception:
        """The error of a run that has left, with what may be the reason besides the run."""
        if is_machine_error(error) and not isinstance(error, ModelsUnavailable):
            return MachineFailed(f"The machine failed: {error}")
        if isinstance(error, OutOfMemory) and self._members:
            return OutOfMemory(str(error), beside_others=True)
        return error if self._device is None else self._device.diagnosed(error)


def _wake() -> None:
    """A command that does nothing. It ends the wait for a command."""
