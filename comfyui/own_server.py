"""OwnServer: a ComfyUI server that Darkroom starts from an install on this machine.

The server listens on a loopback port of its own and uses folders of its own, which are emptied
between jobs. The kernel kills the server if the thread that started it ends, so no server outlives
its worker and keeps GPU memory. A kill also ends the processes that the server has started.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import re
import shutil
import signal
import socket
import sys
from collections import deque
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from comfyui.client import ComfyUIClient
from comfyui.errors import RequestFailed, ServerUnavailable, StartFailed
from comfyui.object_info import ObjectInfo
from comfyui.packs import pack_commits

logger = logging.getLogger(__name__)

_INTERPRETERS = (".venv/bin/python", "venv/bin/python")
"""The places of an install's own interpreter."""
_PASSED_ON = re.compile(
    r"PATH|HOME|USER|LOGNAME|LANG|LC_.*|TZ|TMPDIR|LD_LIBRARY_PATH|XDG_.*|SSL_CERT_.*"
    r"|(?i:https?_proxy|no_proxy)"
    r"|(CUDA|NVIDIA|HIP|HSA|ROCR|ROCM|ZE|ONEAPI|PYTORCH|TORCH|OMP|GOMP|MKL|MALLOC)_.*"
)
"""The variables that the server gets. Others may be secrets, which the code of packs could read."""
_PACKS = "custom_nodes"
_OUTPUT, _INPUT, _TEMP, _USER = "output", "input", "temp", "user"
_NO_PARTNER_NODES = "--disable-api-nodes"
_OPTIONAL = {
    "--log-stdout": (),
    "--preview-method": ("latent2rgb",),
    _NO_PARTNER_NODES: (),
    "--database-url": ("sqlite:///:memory:",),
    "--max-upload-size": ("1024",),
}
"""Arguments for those versions that know them, with their values. The database in memory is needed
because several servers may use one install.
"""
_MANAGER_CONFIG = "default/ComfyUI-Manager/config.ini"
"""The configuration of ComfyUI-Manager in the user folder. Newer versions move this file from here
to `__manager`. If both places had a file, they would run `pip install`.
"""
_OFFLINE = "[default]\nnetwork_mode = offline\n"
_OUTPUT_TIMEOUT_S = 60.0
_PRINT_DEVICE = "import torch; print('cuda' if torch.cuda.is_available() else 'cpu')"
_READY_POLL_S = 0.25
_LAST_LINES = 20
_SHOWN_LINES = 5
_SHOWN_CHARS = 200
_LONGEST_LINE = 1000
_END_TIMEOUT_S = 5.0
_FAILED_IMPORT = re.compile(r"\(IMPORT FAILED\):\s*(.+)$")
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Install:
    folder: Path
    python: Path | None = None
    """The interpreter; None means the install's own one."""
    arguments: tuple[str, ...] = ()
    """Further arguments for `main.py`."""
    has_partner_nodes: bool = False
    """Whether the nodes that send data to other companies are loaded."""

    def interpreter(self) -> Path:
        """Return the interpreter. Raises StartFailed if there is none."""
        if not (self.folder / "main.py").is_file():
            raise StartFailed(f"{self.folder} is no ComfyUI install: it has no main.py")
        if self.python is not None:
            if not self.python.exists():
                raise StartFailed(f"there is no interpreter {self.python}")
            return self.python
        found = (self.folder / each for each in _INTERPRETERS)
        if (python := next(filter(Path.exists, found), None)) is None:
            places = ", ".join(_INTERPRETERS)
            raise StartFailed(
                f"{self.folder} has no interpreter in {places}: set comfyui_python, or "
                "DARKROOM_COMFYUI_PYTHON for `darkroom up`"
            )
        return python


class OwnServer:
    """The process of one install. Each start removes and creates its `folder`."""

    def __init__(
        self,
        install: Install,
        folder: Path,
        *,
        on_cpu: bool,
        required_nodes: Collection[str] = (),
    ) -> None:
        """A start fails if the server does not declare each of `required_nodes`."""
        self._install = install
        self._required_nodes = required_nodes
        self.folder = folder
        self._on_cpu = on_cpu
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self.failed_imports: list[str] = []
        """The folders of the packs that could not be imported."""
        self.packs: Mapping[str, str] = {}
        """The commits of the packs at the start of the server, by folder."""
        self.version: str | None = None
        self.node_types = 0
        """The number of node types that the server has declared at its start."""

    @property
    def has_ended(self) -> bool:
        return self._process is not None and self._process.returncode is not None

    @property
    def last_lines(self) -> str:
        """The last lines of the log as one line."""
        lines = list(self._last_lines)[-_SHOWN_LINES:]
        return " | ".join(line[:_SHOWN_CHARS] for line in lines)

    async def start(self) -> ComfyUIClient:
        """Start the server, and wait until it has declared its nodes. Raises StartFailed.

        There is no time limit while the process lives, because a start may compile or download.
        """
        interpreter = self._install.interpreter()
        await asyncio.to_thread(self._make_folders)
        self.packs = await asyncio.to_thread(pack_commits, self._install.folder / _PACKS)
        port = _free_port()
        self._last_lines.clear()
        self.failed_imports.clear()
        try:
            arguments = await self._arguments(interpreter, port)
            words = ["main.py", *arguments]
            self._process = await _spawn(interpreter, words, self._install.folder)
        except OSError as error:
            raise StartFailed(f"{interpreter} cannot be started: {error}") from error
        self._reading = asyncio.create_task(self._read_log(self._process))
        client = ComfyUIClient(f"http://127.0.0.1:{port}")
        try:
            await self._wait_ready(client)
        except BaseException:
            await client.close()
            await asyncio.shield(self.close())
            raise
        return client

    async def _wait_ready(self, client: ComfyUIClient) -> None:
        assert self._process is not None
        while True:
            if self.has_ended:
                if self._reading is not None:
                    await asyncio.wait({self._reading}, timeout=_END_TIMEOUT_S)
                fields = {"action": "comfyui_start", "lines": list(self._last_lines)}
                logger.error("the log of a ComfyUI that ended at its start", extra=fields)
                text = self.last_lines or "it wrote nothing"
                raise StartFailed(f"{text} (exit status {self._process.returncode})")
            with suppress(ServerUnavailable, RequestFailed):
                # Another server may have taken the port. Only ours has our folder as an argument.
                stats = await client.system_stats()
                system = stats.get("system", {})
                if str(self.folder / _USER) in system.get("argv", ()):
                    self.version = system.get("comfyui_version")
                    declared = await asyncio.to_thread(ObjectInfo, await client.object_info())
                    require_nodes(self._required_nodes, declared.nodes, self.failed_imports)
                    self.node_types = len(declared.nodes)
                    return
            await asyncio.sleep(_READY_POLL_S)

    def resident_bytes(self) -> int:
        """Return the resident memory of the process and all processes that it started. Blocks."""
        total = 0
        for process in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError):
                if self._process is not None and os.getpgid(process.pid) == self._process.pid:
                    total += process.memory_info().rss
        return total

    def kill(self) -> None:
        """Kill the process and all processes that it started."""
        if self._process is not None:
            # The group may have members after its first process has ended.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def close(self) -> None:
        """Kill the process, and wait for its end."""
        self.kill()
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=_END_TIMEOUT_S)
            self._reading.cancel()

    def _make_folders(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in (_OUTPUT, _INPUT, _TEMP, _USER):
            (self.folder / name).mkdir(parents=True, mode=0o700)
        manager_config = self.folder / _USER / _MANAGER_CONFIG
        manager_config.parent.mkdir(parents=True)
        manager_config.write_text(_OFFLINE)

    def empty_folders(self) -> None:
        """Remove the files of the last job. Blocks, so that no other job begins meanwhile."""
        # ComfyUI creates a folder `temp` in the folder that its argument names.
        for folder in (self.folder / each for each in (_OUTPUT, _INPUT, _TEMP)):
            for path in folder.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
            if folder.name == _TEMP:
                (folder / _TEMP).mkdir(exist_ok=True)

    async def _arguments(self, interpreter: Path, port: int) -> list[str]:
        known = await _help(interpreter, self._install.folder)
        # If an argument is given twice, the last one is used, so the operator's come first.
        arguments = list(self._install.arguments)
        arguments += ["--listen", "127.0.0.1", "--port", str(port), "--disable-auto-launch"]
        for name in (_OUTPUT, _INPUT, _TEMP, _USER):
            arguments += [f"--{name}-directory", str(self.folder / name)]
        skipped = {_NO_PARTNER_NODES} if self._install.has_partner_nodes else set()
        for name, values in _OPTIONAL.items():
            if name in known and name not in skipped:
                arguments += [name, *values]
        return [*arguments, "--cpu"] if self._on_cpu else arguments

    async def _read_log(self, process: asyncio.subprocess.Process) -> None:
        """Keep the last lines of the log, and log all of them at debug level."""
        assert process.stdout is not None
        async for line in _lines(process.stdout):
            if line:
                self._last_lines.append(line)
                logger.debug("a line of ComfyUI", extra={"action": "comfyui", "line": line})
            if found := _FAILED_IMPORT.search(line):
                self.failed_imports.append(Path(found[1].strip()).name)
        await process.wait()


def require_nodes(
    required: Collection[str], declared: Collection[str], failed_imports: Collection[str] = ()
) -> None:
    """Raise StartFailed if a required node type is not declared."""
    if missing := [name for name in required if name not in declared]:
        text = f"the server has no {', '.join(missing)}, but comfyui_required_nodes names them"
        if failed_imports:
            text += f". Packs that could not be imported: {', '.join(failed_imports)}"
        raise StartFailed(text)


async def _lines(stream: asyncio.StreamReader) -> AsyncGenerator[str]:
    """Yield the lines of a stream. Progress bars write long lines with carriage returns."""
    rest = ""
    while chunk := await stream.read(65_536):
        *lines, rest = re.split(r"[\r\n]", rest + chunk.decode(errors="replace"))
        for line in lines:
            yield line.strip()[:_LONGEST_LINE]
        rest = rest[-_LONGEST_LINE:]


async def _spawn(
    interpreter: Path, words: Sequence[str], folder: Path
) -> asyncio.subprocess.Process:
    """Start the interpreter in a session of its own. Its output and errors go to one pipe."""
    return await asyncio.create_subprocess_exec(
        interpreter,
        *words,
        cwd=folder,
        env=_environment(os.environ),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,
    )


# The library is loaded before the fork, because a child may only make system calls before it runs
# another program.
_LIBC = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it ends (prctl(2))."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in variables.items() if _PASSED_ON.fullmatch(name)}
    return kept | {"PYTHONUNBUFFERED": "1"}


async def torch_device(install: Install) -> str:
    """Return "cuda" if torch finds a GPU in this install, and otherwise "cpu".

    Raises StartFailed, OSError.
    """
    words = ["-c", _PRINT_DEVICE]
    return (await _output(install.interpreter(), words, install.folder)).split()[-1]


async def _help(interpreter: Path, folder: Path) -> str:
    """Return the help text of `main.py`, which lists the arguments of this version.

    Raises StartFailed, OSError.
    """
    return await _output(interpreter, ["main.py", "--help"], folder)


async def _output(interpreter: Path, words: Sequence[str], folder: Path) -> str:
    process = await _spawn(interpreter, words, folder)
    try:
        async with asyncio.timeout(_OUTPUT_TIMEOUT_S):
            content, _ = await process.communicate()
    except TimeoutError:
        text = f"{' '.join(words)} did not end within {_OUTPUT_TIMEOUT_S:g} s"
        raise StartFailed(text) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    text = content.decode(errors="replace")
    if process.returncode != 0:
        last = (text.splitlines() or ["it wrote nothing"])[-1]
        raise StartFailed(f"{last} (exit status {process.returncode})")
    return text


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
