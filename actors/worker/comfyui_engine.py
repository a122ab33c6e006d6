"""ComfyUIEngine: the Ray actor that runs the graphs of a worker on a ComfyUI server.

It takes the place of `EngineProcess` on endpoints with the engine `comfyui`, and answers the same
calls. The server is either a process of an install on this machine, which the actor starts, or a
server that runs elsewhere already. ComfyUI runs one graph at a time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
import tempfile
import uuid
import zlib
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, closing, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import psutil
import ray

from actors.location import Location, location
from actors.worker.config import EngineConfig
from actors.worker.engine_process import (
    MODEL_LOAD_TIMEOUT_S,
    EngineDied,
    EngineState,
    RunEvent,
    RunRequest,
    ServerInfo,
    first_line,
)
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
from comfyui.graphs import seed_of, with_job_files
from comfyui.object_info import ObjectInfo
from comfyui.own_server import Install, OwnServer, require_nodes
from comfyui.prompt_run import OutputFile, PromptProgress, PromptRun
from engine.interface import (
    ActivityKind,
    DeviceFailed,
    EngineError,
    Errored,
    ErroredNode,
    Finished,
    GraphInvalid,
    MachineFailed,
    NodeFailed,
    OutOfMemory,
    Progress,
)
from events.store.records import Endpoint
from events.types import ComfyUIServer
from settings.constant import constant
from settings.settings import forget_secrets
from storage.file_names import without_folder
from telemetry.logs import set_up_logging

logger = logging.getLogger(__name__)

_ANSWER_S = constant("COMFYUI_ANSWER_S", 60.0)
"""Seconds that are added to the time for which a prompt may be silent. So the run notices the
silence before the job actor kills this process.
"""
_OBJECT_INFO_PERIOD_S = constant("COMFYUI_OBJECT_INFO_S", 60.0)
"""Seconds between two reads of the node types of a server."""
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,8}$")
_JPEG = b"\xff\xd8"
_FOLDER = "darkroom-comfyui-"
"""The prefix of the folder of an own server. The process id of its actor follows."""
_SHORTEST_SECRET = 8
"""The shortest text in `extra_data` that is removed from the texts of errors."""
_LONGEST_PAUSE_S = 60.0
"""Longest pause in seconds between two starts of a server that was never ready."""
_GIB = 2**30
_RESTART = {"action": "comfyui_restart"}


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
        self._server: OwnServer | None = None
        self._error: str | None = None
        """The error of the last start."""

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

    async def object_info(self) -> bytes:
        """Return the server's `/object_info`, compressed by zlib. Raises EngineDied."""
        return self._ready_host().compressed_object_info

    async def location(self) -> Location:
        return location()

    async def server(self) -> ComfyUIServer:
        """Return what is known about the server. Raises EngineDied."""
        return await self._ready_host().server()

    def _ready_host(self) -> ComfyUIHost:
        if self._starting is None:
            self._starting = asyncio.create_task(self._start(), name="start")
        if self._host is None:
            raise EngineDied(self._trouble())
        return self._host

    def _trouble(self) -> str:
        """Return why the server is not ready."""
        if self._error is not None:
            return f"ComfyUI did not start: {self._error}"
        lines = "" if self._server is None else self._server.last_lines
        return f"ComfyUI is starting: {lines}" if lines else "ComfyUI is starting."

    async def _start(self) -> None:
        """Start the server, and start it again after a growing pause as long as it is not ready."""
        pause_s = 1.0
        while True:
            try:
                self._host = await self._opened_host()
            except Exception as error:
                self._error = first_line(error)
                fields = {"action": "comfyui_start", "error": self._error, "pause_s": pause_s}
                logger.error("ComfyUI did not start", exc_info=error, extra=fields)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            else:
                return

    async def _opened_host(self) -> ComfyUIHost:
        endpoint = self._endpoint
        required = endpoint.comfyui_required_nodes or ()
        if endpoint.comfyui_url is not None:
            client = ComfyUIClient(endpoint.comfyui_url)
            try:
                stats = await client.system_stats()
                if required:
                    declared = await asyncio.to_thread(ObjectInfo, await client.object_info())
                    require_nodes(required, declared.nodes)
            except BaseException:
                await client.close()
                raise
            return ComfyUIHost(client, version=stats.get("system", {}).get("comfyui_version"))
        await asyncio.to_thread(_remove_stale_folders)
        self._server = server = OwnServer(
            install_of(endpoint), self._folder, on_cpu=self._on_cpu, required_nodes=required
        )
        client = await server.start()
        fields = {"action": "comfyui_start", "failed_imports": server.failed_imports}
        logger.info("ComfyUI is ready", extra=fields)
        return ComfyUIHost(
            client,
            server,
            max_jobs=endpoint.comfyui_max_jobs,
            max_memory_gib=endpoint.comfyui_max_memory_gib,
        )

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
        has_partner_nodes=bool(endpoint.comfyui_partner_nodes),
    )


class ComfyUIHost:
    """Runs graphs on one server, one after another, and streams the events of each run.

    A run is a task of its own. So a job actor that does not take its events does not keep the
    server from the next job.
    """

    def __init__(
        self,
        client: ComfyUIClient,
        own_server: OwnServer | None = None,
        *,
        version: str | None = None,
        max_jobs: int | None = None,
        max_memory_gib: float | None = None,
    ) -> None:
        """`own_server` is None for a server that Darkroom did not start. It has this `version`. An
        own server is restarted after `max_jobs` jobs, or after a job if its resident memory is
        above `max_memory_gib`.
        """
        self._client = client
        self._own_server = own_server
        self._version = version
        self._max_jobs = max_jobs
        self._max_memory_gib = max_memory_gib
        self._jobs_begun = 0
        """The number of jobs that the server has got since its start."""
        self._recycling: asyncio.Task[None] | None = None
        """The task that restarts the server after the latest job if a limit is reached."""
        self._turn = asyncio.Lock()
        self._runs: dict[str, _Run] = {}
        """The latest run of each job that waits or runs here."""
        self._current: PromptRun | None = None
        self._following = asyncio.create_task(self._follow(), name="follow")
        self.compressed_object_info = b""
        """The server's `/object_info`, compressed by zlib. Empty until it is read."""
        self._object_info_digest: str | None = None
        self.is_broken = False
        """Whether the server, and the process of this actor, must be replaced."""

    @property
    def has_ended(self) -> bool:
        is_ended = self._own_server is not None and self._own_server.has_ended
        return is_ended and not self._is_recycling

    @property
    def _is_recycling(self) -> bool:
        return self._recycling is not None and not self._recycling.done()

    async def close(self) -> None:
        if self._recycling is not None:
            self._recycling.cancel()
            await asyncio.wait({self._recycling})
        self._following.cancel()
        await asyncio.wait({self._following}, timeout=_ANSWER_S)
        for run in self._runs.values():
            run.cancel()
        await asyncio.gather(*(run.task for run in self._runs.values()), return_exceptions=True)
        await self._client.close()

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
            earlier.cancel()
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
            run.cancel()
            if self._runs.get(request.job_id) is run:
                del self._runs[request.job_id]

    def cancel(self, job_id: str, attempt: int) -> bool | None:
        """Cancel a run. Returns whether the server has worked for it, or None if it is unknown."""
        run = self._runs.get(job_id)
        if run is None or run.attempt != attempt:
            return None
        run.cancel()
        return run.has_begun

    async def check(self) -> EngineState:
        """Return the state of the server.

        Raises EngineDied if no graph runs and the server does not answer.
        """
        if self._current is not None:
            return self._state(ActivityKind.NODE, self._current.seconds_left + _ANSWER_S)
        if self._is_recycling:
            return self._state(ActivityKind.LOAD, _ANSWER_S)
        try:
            await self._client.queue()
        except (ServerUnavailable, RequestFailed) as error:
            raise EngineDied(f"ComfyUI at {self._client.url}: {error}") from error
        return self._state(ActivityKind.IDLE, _ANSWER_S)

    def _state(self, kind: ActivityKind, seconds_left: float) -> EngineState:
        own = self._own_server
        version = self._version if own is None else own.version
        failed_imports = () if own is None else tuple(own.failed_imports)
        server = ServerInfo(version, failed_imports, self._object_info_digest)
        return EngineState(kind, seconds_left, jobs=1, server=server)

    async def server(self) -> ComfyUIServer:
        """Return what is known about the server. Waits while the server is restarted."""
        if self._recycling is not None:
            await asyncio.shield(self._recycling)
        if self._object_info_digest is None:
            await self._read_object_info()
        own = self._own_server
        return ComfyUIServer(
            version=self._version if own is None else own.version,
            packs=None if own is None else dict(own.packs),
            object_info=self._object_info_digest,
        )

    def kill(self) -> None:
        """Kill an own server."""
        if self._own_server is not None:
            self._own_server.kill()

    async def _follow(self) -> None:
        """Take the messages of the server and read its node types until cancelled."""
        listening = self._client.listen(self._pass_on)
        await asyncio.gather(listening, self._keep_reading_object_info())

    async def _keep_reading_object_info(self) -> None:
        """Read the node types again and again, because their choices name the files of models.

        Between two jobs the choices do not name input files.
        """
        while True:
            async with self._turn:
                await self._read_object_info()
            await asyncio.sleep(_OBJECT_INFO_PERIOD_S)

    async def _read_object_info(self) -> None:
        with suppress(ServerUnavailable, RequestFailed):
            content = await self._client.object_info()
            digest = blake2b(content, digest_size=16).hexdigest()
            if digest != self._object_info_digest:
                await asyncio.to_thread(ObjectInfo, content)
                self.compressed_object_info = await asyncio.to_thread(zlib.compress, content)
                self._object_info_digest = digest

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
                if self._recycling is not None:
                    await asyncio.shield(self._recycling)
                end: Finished | Errored | EngineDied
                try:
                    end = await self._end(request, mark, report)
                except EngineDied as error:
                    end = error
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
                        if not self.is_broken:
                            self._recycling = asyncio.create_task(self._recycle(self._own_server))
        report(end)

    async def _end(
        self, request: RunRequest, mark: RunMarkWriter, report: Callable[[RunEvent], None]
    ) -> Finished | Errored | EngineDied:
        """Run a graph and return how it ends. Raises EngineDied."""
        try:
            return Finished(await self._run(request, mark, report))
        except ComfyUIError as error:
            return await self._end_of(error, request)

    async def _recycle(self, server: OwnServer) -> None:
        """Restart the server if it has reached a limit. If it does not start, it has ended, and
        `check` replaces this process.
        """
        try:
            if (reason := await self._reason_to_restart(server)) is None:
                return
            logger.info("ComfyUI is restarted", extra={**_RESTART, "reason": reason})
            self._following.cancel()
            await server.close()
            await asyncio.wait({self._following}, timeout=_ANSWER_S)
            await self._client.close()
            async with asyncio.timeout(MODEL_LOAD_TIMEOUT_S):
                self._client = await server.start()
        except Exception:
            logger.exception("ComfyUI was not restarted", extra=_RESTART)
            return
        self._jobs_begun = 0
        self._object_info_digest = None
        self._following = asyncio.create_task(self._follow(), name="follow")

    async def _reason_to_restart(self, server: OwnServer) -> str | None:
        if self._max_jobs is not None and self._jobs_begun >= self._max_jobs:
            return f"it has run {self._jobs_begun} jobs"
        if self._max_memory_gib is not None:
            used_gib = await asyncio.to_thread(server.resident_bytes) / _GIB
            if used_gib > self._max_memory_gib:
                return f"it uses {used_gib:.3g} GiB of memory"
        return None

    async def _run(
        self,
        request: RunRequest,
        mark: RunMarkWriter,
        report: Callable[[RunEvent], None],
    ) -> int:
        """Run a graph, report its progress and files, and return the number of its files.

        Raises ComfyUIError, and EngineDied if the server had ended before.
        """
        if self.is_broken or self.has_ended:
            self.is_broken = True
            raise EngineDied("The ComfyUI server has ended.")
        files = request.options.input_files or {}
        names = {name: await self._upload(name, content) for name, content in files.items()}
        run_id = f"{request.job_id}-{request.attempt}"
        run = PromptRun(
            self._client,
            with_job_files(
                request.prompt,
                run_id,
                names,
                is_diffusion=request.options.first_index is not None,
            ),
            # A second attempt must not find the history entry of the first one.
            str(uuid.uuid5(uuid.NAMESPACE_OID, run_id)),
            is_shared=self._own_server is None,
            extra_data=_extra_data(request) | {"extra_pnginfo": dict(request.extra_pnginfo)},
        )
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
                            report(_file(event, request))
        finally:
            # `PromptRun` has cancelled the prompt, because `aclosing` has closed its generator.
            self._current = None
            if run.is_waiting:
                mark.set_active(False)
            if run.is_stuck and self._own_server is not None:
                self.is_broken = True
                self._own_server.kill()
        return count

    def _begin(self, request: RunRequest, run: PromptRun, mark: RunMarkWriter) -> None:
        mark.set_active(True)
        self._current = run
        self._jobs_begun += 1
        if (known := self._runs.get(request.job_id)) is not None:
            known.has_begun = True

    async def _upload(self, name: str, content: bytes) -> str:
        """Store an input file on the server. Its name there depends on its content only."""
        suffix = found[0] if (found := _SUFFIX.search(without_folder(name))) else ""
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
        text = self._masked(str(error), request)
        match error:
            case PromptRefused():
                answer = self._masked((error.error, error.node_errors), request)
                return Errored(GraphInvalid.of_comfyui(*answer))
            case NodeError(is_out_of_memory=True):
                with suppress(ServerUnavailable):
                    await self._client.free_memory()
                beside_others = not request.options.is_exclusive
                return Errored(OutOfMemory(beside_others=beside_others), _errored_node(error))
            case NodeError(has_lost_device=True) if self._own_server is not None:
                self.is_broken = True
                return Errored(DeviceFailed(text, is_lost=True))
            case NodeError(has_lost_device=False, is_of_machine=False):
                failed = NodeFailed(error.node_id, error.class_type, text)
                return Errored(failed, _errored_node(error))
            case OutputTooLarge() | OutputMissing():
                return Errored(InvalidOutput(text))
            case PromptStalled() | ServerUnavailable() if self._own_server is not None:
                self.is_broken = True
                self._own_server.kill()
                return EngineDied(f"The ComfyUI server is replaced: {text}")
            case _:
                return Errored(MachineFailed(f"ComfyUI: {text}"))

    def _masked(self, value: Any, request: RunRequest) -> Any:
        """Return a JSON value whose texts have neither the path of the server's folders nor a
        secret of the request.
        """
        masks = dict.fromkeys(_texts_in(_extra_data(request)), "***")
        if self._own_server is not None:
            masks[str(self._own_server.folder)] = ""
        # A secret may be a part of another one.
        ordered = sorted(masks.items(), key=lambda mask: len(mask[0]), reverse=True)
        return _replaced(value, ordered)


@dataclass(slots=True)
class _Run:
    attempt: int
    task: asyncio.Task[None]
    has_begun: bool = False
    """Whether the server has worked for the run."""

    def cancel(self) -> None:
        """Cancel the run once. A second cancel would interrupt the wait for the server, which then
        would get the next job too early.
        """
        if not self.task.cancelling():
            self.task.cancel()


class InvalidOutput(EngineError):
    """The outputs of a graph cannot be stored."""

    code = "node_failed"


def _errored_node(error: NodeError) -> ErroredNode | None:
    """Return None if the server has not named the node."""
    if not error.node_id:
        return None
    return ErroredNode(error.node_id, error.class_type, error.kind)


def _extra_data(request: RunRequest) -> dict[str, Any]:
    text = request.extra_data
    return {} if text is None else json.loads(text.get_secret_value())


def _texts_in(value: Any) -> Generator[str]:
    """Yield the texts of a JSON value that are long enough for a secret."""
    match value:
        case str() if len(value) >= _SHORTEST_SECRET:
            yield value
        case dict() | list():
            for each in value.values() if isinstance(value, dict) else value:
                yield from _texts_in(each)


def _replaced(value: Any, masks: Sequence[tuple[str, str]]) -> Any:
    match value:
        case str():
            for text, mask in masks:
                value = value.replace(text, mask)
            return value
        case Mapping():
            return {_replaced(k, masks): _replaced(each, masks) for k, each in value.items()}
        case list() | tuple():
            return [_replaced(each, masks) for each in value]
        case _:
            return value


def _file(file: OutputFile, request: RunRequest) -> FileReady:
    """Return a file of a run. The output nodes of a diffusion request write one image each."""
    first_index = request.options.first_index
    index = file.index if first_index is None else first_index[file.node_id]
    seed = seed_of(request.prompt, file.node_id)
    return FileReady(index, file.node_id, file.content, file.media_type, seed)


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
