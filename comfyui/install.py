"""Install: a folder with ComfyUI, and the process of its server.

The server listens on a loopback port of its own and uses folders of its own, which are emptied
between jobs. It belongs to a new process group and is killed by the kernel if the thread that
started it ends, so no server outlives its worker and keeps GPU memory.
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
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from comfyui.client import ComfyUIClient
from comfyui.errors import ServerUnavailable, StartFailed

logger = logging.getLogger(__name__)

_INTERPRETERS = (".venv/bin/python", "venv/bin/python", "python_embeded/python.exe")
"""The places of an install's own interpreter. ComfyUI spells the last one so."""
_HIDDEN = re.compile(r"DARKROOM_|RAY_|AWS_|AZURE_|GOOGLE_")
"""Variables that the server does not get, because the code of its packs could read them."""
_OUTPUT, _INPUT, _TEMP, _USER = "output", "input", "temp", "user"
_OPTIONAL = {
    "--log-stdout": (),
    "--preview-method": ("latent2rgb",),
    "--disable-api-nodes": (),
    "--database-url": ("sqlite:///:memory:",),
    "--max-upload-size": ("1024",),
}
"""Arguments that are given only to versions that know them. `--disable-api-nodes` keeps nodes off
that send data to other companies.
"""
_HELP_TIMEOUT_S = 60.0
_READY_POLL_S = 0.25
_LAST_LINES = 20
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

    def interpreter(self) -> Path:
        """Return the interpreter. Raises StartFailed if there is none."""
        if not (self.folder / "main.py").is_file():
            raise StartFailed(f"{self.folder} is no ComfyUI install: it has no main.py")
        if self.python is not None:
            return self.python
        found = (self.folder / each for each in _INTERPRETERS)
        if (python := next(filter(Path.exists, found), None)) is None:
            places = ", ".join(_INTERPRETERS)
            raise StartFailed(f"{self.folder} has no interpreter in {places}: name one")
        return python


class ServerProcess:
    """The process of one install. `folder` is removed and made anew at each start."""

    def __init__(self, install: Install, folder: Path, *, on_cpu: bool) -> None:
        self._install = install
        self._folder = folder
        self._on_cpu = on_cpu
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self.failed_imports: list[str] = []
        """The folders of the packs that could not be imported."""

    @property
    def has_ended(self) -> bool:
        return self._process is not None and self._process.returncode is not None

    @property
    def last_line(self) -> str:
        """The last line of the log that is not empty."""
        return self._last_lines[-1] if self._last_lines else ""

    async def start(self) -> ComfyUIClient:
        """Start the server, and wait until it has declared its nodes. Raises StartFailed.

        There is no time limit while the process lives, because a start may compile or download.
        """
        interpreter = self._install.interpreter()
        await asyncio.to_thread(self._make_folders)
        port = _free_port()
        self._last_lines.clear()
        self.failed_imports.clear()
        try:
            arguments = await self._arguments(interpreter, port)
            self._process = await _started(interpreter, arguments, self._install.folder)
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
                lines = " | ".join(list(self._last_lines)[-3:])
                code = self._process.returncode
                raise StartFailed(f"ComfyUI ended with exit status {code}. Its last lines: {lines}")
            with suppress(ServerUnavailable):
                # Another server may have taken the port. Only ours has our folder as an argument.
                stats = await client.system_stats()
                if str(self._folder / _USER) in stats.get("system", {}).get("argv", ()):
                    await client.object_info()
                    return
            await asyncio.sleep(_READY_POLL_S)

    async def empty_folders(self) -> None:
        """Remove the files of the last job."""
        await asyncio.to_thread(self._empty_folders)

    def kill(self) -> None:
        """Kill the process and all processes that it started."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def close(self) -> None:
        """Kill the process, and wait for its end."""
        self.kill()
        if self._reading is not None:
            await self._reading

    def _make_folders(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        for name in (_OUTPUT, _INPUT, _TEMP, _USER):
            (self._folder / name).mkdir(parents=True, mode=0o700)

    def _empty_folders(self) -> None:
        # ComfyUI makes a folder `temp` inside of the folder that its argument names.
        for folder in (self._folder / each for each in (_OUTPUT, _INPUT, _TEMP)):
            for path in folder.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
            if folder.name == _TEMP:
                (folder / _TEMP).mkdir(exist_ok=True)

    async def _arguments(self, interpreter: Path, port: int) -> list[str]:
        known = await _help(interpreter, self._install.folder)
        arguments = ["--listen", "127.0.0.1", "--port", str(port), "--disable-auto-launch"]
        for name in (_OUTPUT, _INPUT, _TEMP, _USER):
            arguments += [f"--{name}-directory", str(self._folder / name)]
        for name, values in _OPTIONAL.items():
            if name in known:
                arguments += [name, *values]
        arguments += ["--cpu"] if self._on_cpu else []
        return [*arguments, *self._install.arguments]

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


async def _lines(stream: asyncio.StreamReader) -> AsyncGenerator[str]:
    """Yield the lines of a stream. Progress bars write long lines with carriage returns."""
    rest = ""
    while chunk := await stream.read(65_536):
        *lines, rest = re.split(r"[\r\n]", rest + chunk.decode(errors="replace"))
        for line in lines:
            yield line.strip()[:_LONGEST_LINE]
        rest = rest[-_LONGEST_LINE:]


async def _started(
    interpreter: Path, arguments: Sequence[str], folder: Path
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        interpreter,
        "main.py",
        *arguments,
        cwd=folder,
        env=_environment(os.environ),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,
    )


_LIBC = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it ends (prctl(2))."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in variables.items() if not _HIDDEN.match(name)}
    return kept | {"PYTHONUNBUFFERED": "1"}


async def _help(interpreter: Path, folder: Path) -> str:
    """Return the help text of `main.py`, which lists the arguments of this version."""
    process = await asyncio.create_subprocess_exec(
        interpreter,
        "main.py",
        "--help",
        cwd=folder,
        env=_environment(os.environ),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        text, _ = await asyncio.wait_for(process.communicate(), _HELP_TIMEOUT_S)
    except TimeoutError:
        process.kill()
        return ""
    return text.decode(errors="replace")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
