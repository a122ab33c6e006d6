"""The exceptions of this package.

ComfyUIError
├── ServerUnavailable   the server does not answer
├── RequestFailed       the server answered a request with an error status
├── StartFailed         the server could not be started
├── PromptRefused       the server does not accept the graph
├── NodeError           a node of the graph raised an exception
├── PromptInterrupted   the prompt was interrupted, by its job or by another user of the server
├── PromptLost          the server does not know the prompt any more
├── PromptStalled       the server reports no progress
├── OutputTooLarge      the outputs of the prompt exceed a limit
└── OutputMissing       the server does not send a file that its history names
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from typing import Any

_MEMORY = ("out of memory", "outofmemory", "not enough memory", "can't allocate memory")
_MACHINE = re.compile(
    rf"\[Errno ({errno.ENOSPC}|{errno.EDQUOT}|{errno.EMFILE}|{errno.ENFILE}|{errno.EIO})\]"
    r"|can't start new thread"
)
_LOST_DEVICE = ("illegal memory access", "device-side assert", "unspecified launch failure")


class ComfyUIError(Exception):
    """A prompt or its server failed."""


class ServerUnavailable(ComfyUIError):
    """The server does not answer."""


class RequestFailed(ComfyUIError):
    """The server answered a request with an error status."""


class StartFailed(ComfyUIError):
    """The server could not be started."""


class PromptRefused(ComfyUIError):
    """The server does not accept the graph, or a part of it."""

    def __init__(self, error: Mapping[str, Any], node_errors: Mapping[str, Any]) -> None:
        """`error` has `type`, `message`, `details` and `extra_info`. `node_errors` has the errors
        of single nodes by node id. Both are ComfyUI's.
        """
        self.error = error
        self.node_errors = node_errors
        super().__init__(error, node_errors)

    def __str__(self) -> str:
        return str(self.error.get("message") or "ComfyUI refused the graph")


class NodeError(ComfyUIError):
    """A node of the graph raised an exception."""

    def __init__(self, node_id: str, class_type: str, kind: str, message: str) -> None:
        """`kind` is the name of the exception's class."""
        self.node_id = node_id
        self.class_type = class_type
        self.kind = kind
        self.message = message
        super().__init__(node_id, class_type, kind, message)

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"

    @property
    def is_out_of_memory(self) -> bool:
        text = f"{self.kind} {self.message}".lower()
        return any(phrase in text for phrase in _MEMORY)

    @property
    def is_of_machine(self) -> bool:
        """Whether the machine lacked disk space, files or threads."""
        return _MACHINE.search(self.message) is not None

    @property
    def has_lost_device(self) -> bool:
        """Whether only a new process can use the device again."""
        return any(phrase in self.message.lower() for phrase in _LOST_DEVICE)


class PromptInterrupted(ComfyUIError):
    """The prompt was interrupted, by its job or by another user of the server."""


class PromptLost(ComfyUIError):
    """The server does not know the prompt any more."""


class PromptStalled(ComfyUIError):
    """The server reports no progress."""


class OutputTooLarge(ComfyUIError):
    """The outputs of the prompt exceed a limit."""


class OutputMissing(ComfyUIError):
    """The server does not send a file that its history names."""
