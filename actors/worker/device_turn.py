"""DeviceTurn: which of a worker's two engine processes has the device."""

from __future__ import annotations

import errno
import socket
import sys
import time

_POLL_S = 0.05


class DeviceTurn:
    """Held by one process at a time, and free the moment that this process ends, however it ends.

    It is the name of a socket in Linux's abstract namespace, so it leaves no file. Both processes
    are in one bundle of a placement group, and so on one machine. Elsewhere than on Linux there is
    one process, and it has the turn.
    """

    def __init__(self, worker: str) -> None:
        """`worker`: a name that no other worker of any cluster has."""
        self._address = f"\0darkroom-engine-{worker}"
        self._socket: socket.socket | None = None

    @property
    def is_held(self) -> bool:
        """Whether this process has it."""
        return self._socket is not None

    def take(self) -> bool:
        """Take it if it is free; whether this process has it now.

        Raises OSError where the system refuses the name for another reason than its holder.
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
        """What the end of the process does, too."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def wait(self) -> None:
        """Returns once this process has it. Raises OSError; see `take`."""
        while not self.take():
            time.sleep(_POLL_S)
