"""ComfyUIEngine: the Ray actor that runs the graphs of a worker on a ComfyUI server.

It takes the place of `EngineProcess` on endpoints with the engine `comfyui`, and answers the same
calls. The server is either a process of an install on this machine, which the actor starts, or a
server that runs elsewhere already. ComfyUI runs one graph at a time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, closing, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import psutil
import ray

from actors.location import Location, location
from actors.worker.config import EngineConfig
from actors.worker.engine_process import EngineDied, EngineState, RunEvent, RunRequest, first_line
from actors.worker.result_file import FileReady
from actors.worker.run_mark import RunMarkWriter
from actors.worker.standby import Devices
from comfyui.client import ComfyUIClient, Message
from comfyui.errors import (
    ComfyUIError,
    NodeError,
    OutputMissing,
    OutputTooLarge,
    PromptRefused,
    PromptStalled,
    RequestFailed,
    ServerUnavailable,
)
from comfyui.graphs import with_job_files
from comfyui.own_server import Install, OwnServer
from comfyui.prompt_run import OutputFile, PromptProgress, PromptRun
from engine.interface import (
    ActivityKind,
    DeviceFailed,
    EngineError,
    Errored,
    Finished,
    GraphInvalid,
    MachineFailed,
    NodeFailed,
    OutOfMemory,
    Progress,
)
from events.store.records import Endpoint
from settings.constant import constant
from settings.settings import forget_secrets
from telemetry.logs import set_up_logging

logger = logging.getLogger(__name__)

_ANSWER_S = constant("COMFYUI_ANSWER_S", 60.0)
"""Seconds that are added to the time for which a prompt may be silent. So the run notices the
silence before the job actor kills this process.
"""
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,8}$")
_JPEG = b"\xff\xd8"
_FOLDER = "darkroom-comfyui-"
"""The prefix of the folder of an own server. The process id of its actor follows."""
_LONGEST_PAUSE_S = 60.0
"""Longest pause in seconds between two starts of a server that was never ready."""


class ComfyUIEngine:
    """The engine of a worker on an endpoint with the engine `comfyui`.

    The server is started by the first call. If it ends or hangs later, this process ends, and Ray
    restarts it.
    """

    def __init__(self, config: EngineConfig, *, device: str) -> None:
        set_up_logging(log_format=config.log_format)
        forget_secrets(os.environ)
        self._folder = Path(tempfile.gettempdir()) / f"{_FOLDER}{os.getpid()}"
        self._endpoint = config.endpoint
        self._on_cpu = device == "cpu"
        self._host: ComfyUIHost | None = None
        self._starting: asyncio.Task[None] | None = None
        self._trouble = "ComfyUI is starting."

    async def has_device(self) -> bool:
        return True

    async def standby_devices(self) -> Devices | None:
        """Return None: there is no standby, because a server cannot wait without its device."""
        return None

    async def run(self, request: RunRequest) -> AsyncGenerator[RunEvent]:
        """Run a graph. Raises EngineDied."""
        host = self._ready_host()
        try:
            async with aclosing(host.run(request)) as events:
                async for event in events:
                    yield event
        finally:
            if host.is_broken:
                self._exit("the ComfyUI server is broken")

    async def cancel(self, job_id: str, attempt: int) -> bool | None:
        return None if self._host is None else self._host.cancel(job_id, attempt)

    async def check(self) -> EngineState:
        """Return the state of the server after its start. Raises EngineDied."""
        host = self._ready_host()
        if host.has_ended:
            self._exit("the ComfyUI server has ended")
        return await host.check()

    async def location(self) -> Location:
        return location()

    def _ready_host(self) -> ComfyUIHost:
        if self._starting is None:
            self._starting = asyncio.create_task(self._start(), name="start")
        if self._host is None:
            raise EngineDied(self._trouble)
        return self._host

    async def _start(self) -> None:
        """Start the server, and start it again after a growing pause as long as it is not ready."""
        pause_s = 1.0
        while True:
            try:
                self._host = await self._opened_host()
            except Exception as error:
                self._trouble = f"ComfyUI did not start: {first_line(error)}"
                fields = {"action": "comfyui_start", "error": self._trouble, "pause_s": pause_s}
                logger.error("ComfyUI did not start", exc_info=error, extra=fields)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            else:
                return

    async def _opened_host(self) -> ComfyUIHost:
        endpoint = self._endpoint
        if endpoint.comfyui_url is not None:
            client = ComfyUIClient(endpoint.comfyui_url)
            try:
                await client.system_stats()
            except BaseException:
                await client.close()
                raise
            return ComfyUIHost(client)
        await asyncio.to_thread(_remove_stale_folders)
        server = OwnServer(install_of(endpoint), self._folder, on_cpu=self._on_cpu)
        client = await server.start()
        fields = {"action": "comfyui_start", "failed_imports": server.failed_imports}
        logger.info("ComfyUI is ready", extra=fields)
        return ComfyUIHost(client, server)

    def _exit(self, why: str) -> None:
        """End this process and the server. Ray restarts this process."""
        logger.error(why, extra={"action": "engine_exit"})
        if self._host is not None:
            self._host.kill()
        os._exit(1)


ComfyUIEngineActor = ray.remote(ComfyUIEngine)


def _remove_stale_folders() -> None:
    """Remove the folders of servers whose actors have ended, with the files of their jobs."""
    for path in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        with suppress(OSError, ValueError):
            if not psutil.pid_exists(int(path.name.removeprefix(_FOLDER))):
                shutil.rmtree(path)


def install_of(endpoint: Endpoint) -> Install:
    assert endpoint.comfyui_dir is not None
    python = endpoint.comfyui_python
    return Install(
        Path(endpoint.comfyui_dir),
        None if python is None else Path(python),
        endpoint.comfyui_args or (),
    )


class ComfyUIHost:
    """Runs graphs on one server, one after another, and streams the events of each run.

    A run is a task of its own. So a job actor that does not take its events does not keep the
    server from the next job.
    """

    def __init__(self, client: ComfyUIClient, own_server: OwnServer | None = None) -> None:
        """`own_server` is None for a server that Darkroom did not start."""
        self._client = client
        self._own_server = own_server
        self._turn = asyncio.Lock()
        self._runs: dict[str, _Run] = {}
        """The latest run of each job that waits or runs here."""
        self._current: PromptRun | None = None
        self._listening = asyncio.create_task(client.listen(self._pass_on), name="listen")
        self.is_broken = False
        """Whether the server, and the process of this actor, must be replaced."""

    @property
    def has_ended(self) -> bool:
        return self._own_server is not None and self._own_server.has_ended

    async def close(self) -> None:
        self._listening.cancel()
        for run in self._runs.values():
            run.task.cancel()
        await asyncio.gather(*(run.task for run in self._runs.values()), return_exceptions=True)

    async def run(self, request: RunRequest) -> AsyncGenerator[RunEvent]:
        """Run a graph and yield its events. The last event is `Finished` or `Errored`.

        A run cancels the run of an earlier attempt at the same job. If a later attempt is here
        already, the only event is `Errored`. Raises EngineDied if the server must be replaced.
        """
        earlier = self._runs.get(request.job_id)
        if earlier is not None and request.attempt <= earlier.attempt:
            yield Errored(EngineError("a later attempt is running"))
            return
        if earlier is not None:
            earlier.task.cancel()
        events: asyncio.Queue[RunEvent | EngineDied] = asyncio.Queue()
        task = asyncio.create_task(self._work(request, events.put_nowait), name=request.job_id)
        self._runs[request.job_id] = run = _Run(request.attempt, task)
        try:
            while True:
                event = await events.get()
                if isinstance(event, EngineDied):
                    raise event
                yield event
                if isinstance(event, Finished | Errored):
                    return
        finally:
            task.cancel()
            if self._runs.get(request.job_id) is run:
                del self._runs[request.job_id]

    def cancel(self, job_id: str, attempt: int) -> bool | None:
        """Cancel a run. Returns whether the server has worked for it, or None if it is unknown."""
        run = self._runs.get(job_id)
        if run is None or run.attempt != attempt:
            return None
        run.task.cancel()
        return run.has_begun

    async def check(self) -> EngineState:
        """Return the state of the server.

        Raises EngineDied if no graph runs and the server does not answer.
        """
        if self._current is not None:
            left_s = self._current.seconds_left + _ANSWER_S
            return EngineState(ActivityKind.NODE, left_s, jobs=1)
        try:
            await self._client.queue()
        except (ServerUnavailable, RequestFailed) as error:
            raise EngineDied(f"ComfyUI at {self._client.url}: {error}") from error
        return EngineState(ActivityKind.IDLE, _ANSWER_S, jobs=1)

    def kill(self) -> None:
        """Kill an own server."""
        if self._own_server is not None:
            self._own_server.kill()

    def _pass_on(self, message: Message) -> None:
        if self._current is not None:
            self._current.note(message)

    async def _work(
        self, request: RunRequest, report: Callable[[RunEvent | EngineDied], None]
    ) -> None:
        """Wait for the server, run a graph on it, and report the events and the end."""
        with closing(RunMarkWriter(request.mark)) as mark:
            mark.set_active(False)
            async with self._turn:
                end: Finished | Errored | EngineDied
                try:
                    end = Finished(await self._run(request, mark, report))
                except EngineDied as error:
                    end = error
                except ComfyUIError as error:
                    end = await self._end_of(error, request)
                except Exception as error:
                    logger.exception("a run on ComfyUI failed", extra={"action": "comfyui_run"})
                    end = Errored(EngineError(f"ComfyUI's answer cannot be used: {error}"))
                finally:
                    # The mark stays if the server is replaced, because the job may be the reason.
                    if not self.is_broken:
                        mark.set_active(False)
                    if self._own_server is not None and not self._own_server.has_ended:
                        with suppress(OSError):
                            self._own_server.empty_folders()
        report(end)

    async def _run(
        self,
        request: RunRequest,
        mark: RunMarkWriter,
        report: Callable[[RunEvent], None],
    ) -> int:
        """Run a graph, report its progress and files, and return the number of its files.

        Raises ComfyUIError, and EngineDied if the server had ended before.
        """
        files = request.options.input_files or {}
        names = {name: await self._upload(name, content) for name, content in files.items()}
        run_id = f"{request.job_id}-{request.attempt}"
        run = PromptRun(
            self._client,
            with_job_files(request.prompt, run_id, names),
            # A second attempt must not find the history entry of the first one.
            str(uuid.uuid5(uuid.NAMESPACE_OID, run_id)),
            extra_data={"extra_pnginfo": dict(request.extra_pnginfo)},
        )
        if self.has_ended:
            self.is_broken = True
            raise EngineDied("The ComfyUI server has ended.")
        count = 0
        self._begin(request, run, mark)
        try:
            async with aclosing(run.run()) as events:
                async for event in events:
                    match event:
                        case PromptProgress():
                            report(_progress(event, request))
                        case OutputFile():
                            mark.set_active(False)  # The server no longer works for the job.
                            count += 1
                            report(
                                FileReady(
                                    event.index, event.node_id, event.content, event.media_type
                                )
                            )
        finally:
            # `PromptRun` has cancelled the prompt, because `aclosing` has closed its generator.
            self._current = None
            if run.is_stuck and self._own_server is not None:
                self.is_broken = True
                self._own_server.kill()
        return count

    def _begin(self, request: RunRequest, run: PromptRun, mark: RunMarkWriter) -> None:
        mark.set_active(True)
        self._current = run
        if (known := self._runs.get(request.job_id)) is not None:
            known.has_begun = True

    async def _upload(self, name: str, content: bytes) -> str:
        """Store an input file on the server. Its name there depends on its content only."""
        suffix = found[0] if (found := _SUFFIX.search(name)) else ""
        digest = blake2b(content, digest_size=16).hexdigest()
        return await self._client.upload(f"darkroom-{digest}{suffix}", content)

    async def _end_of(self, error: ComfyUIError, request: RunRequest) -> Errored | EngineDied:
        """Return how an error of ComfyUI ends the attempt, and replace the server if necessary.

        error                               the attempt                  an own server
        ----------------------------------  ---------------------------  -------------
        graph refused, node failed          the job fails
        output missing or too large         the job fails
        out of memory                       suspect; then the job fails  frees memory
        machine lacks disk space or files   without blame
        device lost                         suspect                      is replaced
        stalled, or no answer               suspect                      is replaced
        lost, interrupted, error status     without blame

        On an attached server, no job is blamed for a lost device, a stall or a missing answer,
        because other users of the server may be the cause.
        """
        match error:
            case PromptRefused():
                return Errored(_graph_invalid(error))
            case NodeError(is_out_of_memory=True):
                with suppress(ServerUnavailable):
                    await self._client.free_memory()
                return Errored(OutOfMemory(beside_others=not request.options.is_exclusive))
            case NodeError(has_lost_device=True) if self._own_server is not None:
                self.is_broken = True
                return Errored(DeviceFailed(self._text(error), is_lost=True))
            case NodeError(has_lost_device=False, is_of_machine=False):
                return Errored(NodeFailed(error.node_id, error.class_type, self._text(error)))
            case OutputTooLarge() | OutputMissing():
                return Errored(InvalidOutput(str(error)))
            case PromptStalled() | ServerUnavailable() if self._own_server is not None:
                self.is_broken = True
                self._own_server.kill()
                return EngineDied(f"The ComfyUI server is replaced: {error}")
            case _:
                return Errored(MachineFailed(f"ComfyUI: {self._text(error)}"))

    def _text(self, error: ComfyUIError) -> str:
        """Return the text of an error without the path of the server's folders."""
        folder = None if self._own_server is None else str(self._own_server.folder)
        return str(error) if folder is None else str(error).replace(folder, "")


@dataclass(slots=True)
class _Run:
    attempt: int
    task: asyncio.Task[None]
    has_begun: bool = False
    """Whether the server has worked for the run."""


class InvalidOutput(EngineError):
    """The outputs of a graph cannot be stored."""

    code = "node_failed"


def _graph_invalid(error: PromptRefused) -> GraphInvalid:
    text = {name: str(error.error.get(name) or "") for name in ("type", "message", "details")}
    extra = error.error.get("extra_info")
    return GraphInvalid(
        text["type"],
        text["message"] or "ComfyUI refused the graph",
        text["details"],
        extra_info=extra if isinstance(extra, dict) else None,
        node_errors=error.node_errors,
    )


def _progress(progress: PromptProgress, request: RunRequest) -> Progress:
    node = request.prompt.get(progress.node_id) or {}
    preview = progress.preview if request.options.has_previews else None
    is_jpeg = preview is not None and preview.startswith(_JPEG)
    return Progress(
        progress.done,
        progress.total,
        node_id=progress.node_id,
        class_type=node.get("class_type", ""),
        preview=preview if is_jpeg else None,
    )
