"""The standby: an engine process that waits until the device of its worker is free.

The standby has imported all modules of an engine. When the process with the device ends, the
standby takes the `DeviceLock` and starts the engine. So a new engine need not wait for the start of
Python and the import of torch. Ray restarts the process that ended, and that process becomes the
standby.
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
"""Whether workers have a standby. A standby uses about 400 MB of memory. It uses no GPU until it
takes the device.
"""
_STANDBY_FROM_BYTES = 8 * 1024**3
"""Smallest memory of a machine, in bytes, with which its workers have a standby."""
_STANDBY_NICENESS = 10
_POLL_S = 0.05


def wants_standby() -> bool:
    """Whether workers on this machine have a standby."""
    return _STANDBY_ENGINE and sys.platform == "linux" and memory_bytes() >= _STANDBY_FROM_BYTES


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of an engine process. They are passed to its standby, because Ray assigns no
    devices to the standby.
    """

    node: str
    visible: str

    @classmethod
    def of_this_process(cls) -> Devices:
        visible = os.environ.get(_VISIBLE_DEVICES, "")
        return cls(ray.get_runtime_context().get_node_id(), visible)

    def adopt(self) -> None:
        """Make the devices visible to this process.

        Raises RuntimeError on another node, because the devices of that node may be in use by
        another worker. Ray moves a worker to another node if its node is lost.
        """
        if self.visible and self.node != ray.get_runtime_context().get_node_id():
            raise RuntimeError("The devices of this process belong to another node.")
        os.environ[_VISIBLE_DEVICES] = self.visible


class DeviceLock:
    """A lock that is released when the process that holds it ends in any way.

    The lock is the name of a socket in Linux's abstract namespace, so no file is left. Both engine
    processes are in one bundle of a placement group, and therefore on one machine. On systems other
    than Linux there is only one engine process.
    """

    def __init__(self, worker: str) -> None:
        """`worker` is a name that no other worker on the machine has, of this or another
        cluster.
        """
        self._address = f"\0darkroom-engine-{worker}"
        self._socket: socket.socket | None = None

    @property
    def is_held(self) -> bool:
        """Whether this process holds the lock."""
        return self._socket is not None

    def take(self) -> bool:
        """Take the lock if it is free. Returns whether this process holds it now.

        Raises OSError if the socket cannot be bound, unless another process holds the lock.
        """
        if self._socket is None:
            taken = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                if sys.platform == "linux":
                    taken.bind(self._address)
            except OSError as error:
                taken.close()
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                self._socket = taken
        return self.is_held

    def give_back(self) -> None:
        """Release the lock. The end of the process also releases it."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def wait(self) -> None:
        """Wait until this process holds the lock. Raises OSError (see `take`)."""
        while not self.take():
            time.sleep(_POLL_S)


def stand_by(lock: DeviceLock) -> None:
    """Import the modules of an engine, and wait until this process holds the lock."""
    # The warm-up has its own thread with a low priority, which only threads of the warm-up inherit.
    threading.Thread(target=_warm_up, name="warm-up", daemon=True).start()
    lock.wait()
    logger.info("the standby takes the device", extra={"action": "engine_takes_over"})


def _warm_up() -> None:
    """Import the modules of an engine. This takes some seconds and uses no device."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _STANDBY_NICENESS)
    for module in ("device", "context"):
        importlib.import_module(f"engine.diffusion.{module}")
