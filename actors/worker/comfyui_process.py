"""ComfyUIProcess: the Ray actor that runs the graphs of a worker on a ComfyUI server.

It takes the place of `EngineProcess` on endpoints with the engine `comfyui`, and answers the same
calls. The server is either a process of an install on this machine, which the actor starts, or a
server that runs elsewhere already. ComfyUI runs one graph at a time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import tempfile
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, closing, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

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
    OutputTooLarge,
    PromptRefused,
    PromptStalled,
    ServerUnavailable,
)
from comfyui.graphs import with_job_files
from comfyui.install import Install, ServerProcess
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
"""Seconds for which the server may leave `check` without an answer while a graph runs. A node may
hold Python's interpreter lock, so that the server cannot answer.
"""
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,8}$")
_LONGEST_PAUSE_S = 60.0
"""Longest pause in seconds between two starts of a server that was never ready."""


class ComfyUIProcess:
    """The engine of a worker on an endpoint with the engine `comfyui`.

    The server is started by the first call. If it ends or hangs later, this process ends, and Ray
    restarts it.
    """

    def __init__(self, config: EngineConfig, *, device: str) -> None:
        set_up_logging(log_format=config.log_format)
        forget_secrets(os.environ)
        worker = str(ray.get_runtime_context().get_placement_group_id())
        self._folder = Path(tempfile.gettempdir()) / f"darkroom-comfyui-{worker}"
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
            except (ComfyUIError, OSError) as error:
                self._trouble = f"ComfyUI did not start: {first_line(error)}"
                fields = {"action": "comfyui_start", "error": self._trouble, "pause_s": pause_s}
                logger.error("ComfyUI did not start", extra=fields)
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
            except ServerUnavailable:
                await client.close()
                raise
            return ComfyUIHost(client)
        process = ServerProcess(install_of(endpoint), self._folder, on_cpu=self._on_cpu)
        client = await process.start()
        fields = {"action": "comfyui_start", "failed_imports": process.failed_imports}
        logger.info("ComfyUI is ready", extra=fields)
        return ComfyUIHost(client, process)

    def _exit(self, why: str) -> None:
        """End this process and the server. Ray restarts this process."""
        logger.error(why, extra={"action": "engine_exit"})
        if self._host is not None:
            self._host.kill()
        os._exit(1)


ComfyUIProcessActor = ray.remote(ComfyUIProcess)


def install_of(endpoint: Endpoint) -> Install:
    assert endpoint.comfyui_dir is not None
    python = endpoint.comfyui_python
    return Install(
        Path(endpoint.comfyui_dir),
        None if python is None else Path(python),
        endpoint.comfyui_args or (),
    )


class ComfyUIHost:
    """Runs graphs on one server, one after another, and streams the events of each run."""

    def __init__(self, client: ComfyUIClient, process: ServerProcess | None = None) -> None:
        """`process` is None for a server that Darkroom did not start."""
        self._client = client
        self._process = process
        self._turn = asyncio.Lock()
        self._running: tuple[RunRequest, PromptRun] | None = None
        self._listening = asyncio.create_task(client.listen(self._pass_on), name="listen")
        self.is_broken = False
        """Whether the process must be replaced."""

    @property
    def has_ended(self) -> bool:
        return self._process is not None and self._process.has_ended

    async def run(self, request: RunRequest) -> AsyncGenerator[RunEvent]:
        """Run a graph and yield its events. The last event is `Finished` or `Errored`.

        Raises EngineDied if the server has ended, or hangs.
        """
        with closing(RunMarkWriter(request.mark)) as mark:
            mark.set_active(False)
            self._cancel_earlier(request)
            async with self._turn:
                mark.set_active(True)
                try:
                    async with aclosing(self._run(request)) as events:
                        async for event in events:
                            yield event
                except ComfyUIError as error:
                    yield Errored(await self._engine_error(error, request))
                finally:
                    if self._process is not None and not self._process.has_ended:
                        with suppress(OSError):
                            await self._process.empty_folders()
                    # The mark must stay if the server has ended, because the job may be the reason.
                    if not self.is_broken:
                        mark.set_active(False)

    async def _run(self, request: RunRequest) -> AsyncGenerator[RunEvent]:
        files = request.options.input_files or {}
        names = {name: await self._upload(name, content) for name, content in files.items()}
        graph = with_job_files(request.prompt, request.job_id, names)
        # A second attempt must not find the history entry of the first one.
        prompt_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{request.job_id}/{request.attempt}"))
        extra_data = {"extra_pnginfo": dict(request.extra_pnginfo)}
        run = PromptRun(self._client, graph, prompt_id, extra_data=extra_data)
        self._running = (request, run)
        count = 0
        try:
            async with aclosing(run.run()) as events:
                async for event in events:
                    match event:
                        case PromptProgress():
                            yield _progress(event, graph)
                        case OutputFile():
                            count += 1
                            yield FileReady(
                                event.index, event.node_id, event.content, event.media_type
                            )
        finally:
            self._running = None
            if run.is_stuck and self._process is not None:
                self.is_broken = True
        yield Finished(count)

    def _cancel_earlier(self, request: RunRequest) -> None:
        """Cancel an earlier attempt at the same job, whose job actor died or lost the job."""
        if self._running is not None and self._running[0].job_id == request.job_id:
            self._running[1].cancel()

    async def _upload(self, name: str, content: bytes) -> str:
        """Store an input file on the server under a name that depends on its content only."""
        suffix = found[0] if (found := _SUFFIX.search(name)) else ""
        digest = blake2b(content, digest_size=16).hexdigest()
        return await self._client.upload(f"darkroom-{digest}{suffix}", content)

    def cancel(self, job_id: str, attempt: int) -> bool | None:
        """Cancel a run. Returns True if the server worked for it, or None if this is unknown."""
        if self._running is None:
            return None
        request, run = self._running
        if (request.job_id, request.attempt) != (job_id, attempt):
            return None
        run.cancel()
        return True

    async def check(self) -> EngineState:
        """Return the state of the server. Raises EngineDied if it does not answer."""
        if self._running is not None:
            return EngineState(ActivityKind.NODE, self._running[1].seconds_left + _ANSWER_S, jobs=1)
        try:
            await self._client.queue()
        except ServerUnavailable as error:
            raise EngineDied(f"ComfyUI at {self._client.url}: {error}") from error
        return EngineState(ActivityKind.IDLE, _ANSWER_S, jobs=1)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _pass_on(self, message: Message) -> None:
        if self._running is not None:
            self._running[1].note(message)

    async def _engine_error(self, error: ComfyUIError, request: RunRequest) -> EngineError:
        """Convert an error of a prompt. Raises EngineDied if the server must be replaced."""
        match error:
            case PromptRefused():
                return _graph_invalid(error)
            case NodeError(is_out_of_memory=True):
                with suppress(ServerUnavailable):
                    await self._client.free_memory()
                # The next attempt finds an empty device. If it fails again, the job is too large.
                return OutOfMemory(beside_others=not request.options.is_exclusive)
            case NodeError(has_lost_device=True):
                self.is_broken = self._process is not None
                return DeviceFailed(str(error), is_lost=True)
            case NodeError():
                return NodeFailed(error.node_id, error.class_type, str(error))
            case OutputTooLarge():
                return NodeFailed("", "", str(error))
            case PromptStalled() | ServerUnavailable() if self._process is not None:
                self.is_broken = True
                self._process.kill()
                raise EngineDied(f"The ComfyUI server hangs or has ended: {error}") from error
            case _:
                return MachineFailed(f"ComfyUI at {self._client.url}: {error}")


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


def _progress(progress: PromptProgress, graph: Mapping[str, Any]) -> Progress:
    node = graph.get(progress.node_id) or {}
    return Progress(
        progress.done,
        progress.total,
        node_id=progress.node_id,
        class_type=node.get("class_type", ""),
        preview=progress.preview,
    )
