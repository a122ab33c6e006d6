"""The standby: an engine process that waits until the device of its worker is free.

The standby has imported all modules of an engine. When the process with the device ends, the
standby acquires the `DeviceLock` and starts the engine. This saves the time to start Python and to
import torch. Ray restarts the process that ended, and that process becomes the standby.
"""

from __future__ import annotations

import errno
import importlib
import logging
import os
import socket
import sys
import threading
import time
from dataclasses import dataclass

import ray

from actors.worker.process_memory import memory_bytes
from settings.constant import constant

logger = logging.getLogger(__name__)

_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_STANDBY_ENGINE = constant("STANDBY_ENGINE", True)
"""Whether workers have a standby. A standby needs about 400 MB of memory and no GPU memory."""
_STANDBY_FROM_BYTES = 8 * 1024**3
"""Workers on machines with less memory than this many bytes have no standby."""
_STANDBY_NICENESS = 10
_POLL_S = 0.05


def wants_standby() -> bool:
    return _STANDBY_ENGINE and sys.platform == "linux" and memory_bytes() >= _STANDBY_FROM_BYTES


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of an engine process, for its standby. Ray assigns no devices to a standby."""

    node: str
    visible: str | None
    """The value of `CUDA_VISIBLE_DEVICES`, or None if it is not set."""

    @classmethod
    def of_this_process(cls) -> Devices:
        visible = os.environ.get(_VISIBLE_DEVICES)
        return cls(ray.get_runtime_context().get_node_id(), visible)

    def adopt(self) -> None:
        """Make the devices visible to this process.

        Raises RuntimeError if Ray has moved this process to another node. Other workers may use the
        devices of that node.
        """
        if self.visible and self.node != ray.get_runtime_context().get_node_id():
            raise RuntimeError("The devices of this process belong to another node.")
        if self.visible is None:
            os.environ.pop(_VISIBLE_DEVICES, None)
        else:
            os.environ[_VISIBLE_DEVICES] = self.visible


class DeviceLock:
    """A lock that is released when the process that holds it ends in any way.

    The lock is the name of a socket in Linux's abstract namespace, so no file is left. Both engine
    processes of a worker are in one bundle of a placement group, and therefore on one machine. On
    other systems than Linux a worker has only one engine process, which always gets the lock.
    """

    def __init__(self, worker: str) -> None:
        """`worker` is unique on the machine, even if workers of several clusters run there."""
        self._address = f"\0darkroom-engine-{worker}"
        self._socket: socket.socket | None = None

    @property
    def is_held(self) -> bool:
        return self._socket is not None

    def acquire(self) -> bool:
        """Acquire the lock if it is free. Returns whether this process holds the lock now.

        Raises OSError if binding the socket fails for another reason than a lock in use.
        """
        if self._socket is None:
            bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                if sys.platform == "linux":
                    bound.bind(self._address)
            except OSError as error:
                bound.close()
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                self._socket = bound
        return self.is_held

    def release(self) -> None:
        """Release the lock."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def wait(self) -> None:
        """Acquire the lock, if necessary after a wait. Raises OSError (see `acquire`)."""
        while not self.acquire():
            time.sleep(_POLL_S)


def stand_by(lock: DeviceLock) -> None:
    """Import the modules of an engine, and wait until this process holds the lock."""
    # Threads inherit the priority of the thread that starts them. The warm-up runs in its own
    # thread, so only threads that the imports start inherit its low priority.
    threading.Thread(target=_warm_up, name="warm-up", daemon=True).start()
    lock.wait()
    logger.info("the standby takes the device", extra={"action": "engine_takes_over"})


def _warm_up() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _STANDBY_NICENESS)
    for module in ("device", "context"):
        importlib.import_module(f"engine.diffusion.{module}")
