"""The exceptions of this package.

ComfyUIError
├── ServerUnavailable   the server does not answer, or answers with an error of its own
├── StartFailed         the process of the server ended before it was ready
├── PromptRefused       the server does not accept the graph
├── NodeError           a node of the graph raised an exception
├── PromptInterrupted   somebody has interrupted the prompt
├── PromptLost          the server does not know the prompt any more
├── PromptStalled       the server reports no progress
└── OutputTooLarge      the outputs of the prompt exceed a limit
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MEMORY = ("out of memory", "outofmemory", "not enough memory", "can't allocate memory")
_LOST_DEVICE = ("illegal memory access", "device-side assert", "unspecified launch failure")


class ComfyUIError(Exception):
    """A request to a ComfyUI server failed."""


class ServerUnavailable(ComfyUIError):
    """The server does not answer, or answers with an error of its own."""


class StartFailed(ComfyUIError):
    """The process of the server ended before it was ready."""


class PromptRefused(ComfyUIError):
    """The server does not accept the graph (status 400)."""

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
    def has_lost_device(self) -> bool:
        """Whether only a new process can use the device again."""
        return any(phrase in self.message.lower() for phrase in _LOST_DEVICE)


class PromptInterrupted(ComfyUIError):
    """Somebody has interrupted the prompt."""


class PromptLost(ComfyUIError):
    """The server does not know the prompt any more."""


class PromptStalled(ComfyUIError):
    """The server reports no progress."""


class OutputTooLarge(ComfyUIError):
    """The outputs of the prompt exceed a limit."""
