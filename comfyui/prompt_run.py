"""PromptRun: runs one prompt on a ComfyUI server until its outputs are known.

Only the history decides whether a prompt has ended. The websocket may be silent or closed while the
prompt goes on, so its messages only show progress and shorten the wait for the history entry. That
entry is written some time after the message about the end. A prompt that the server neither has in
its queue nor in its history is lost, for example because the server was restarted.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

from comfyui.client import ComfyUIClient, Message
from comfyui.errors import (
    OutputTooLarge,
    PromptLost,
    PromptRefused,
    PromptStalled,
    RequestFailed,
    ServerUnavailable,
)
from comfyui.graphs import FileReference, error_of, outputs_of
from settings.constant import constant
from storage.file_names import media_type_of

_POLL_S = constant("COMFYUI_POLL_S", 1.0)
"""Seconds between two looks into the history."""
_STALLED_AFTER_S = constant("COMFYUI_SILENCE_S", 600.0)
"""Seconds without a message about a running prompt after which the server is taken to hang. A node
may load models for minutes and report nothing.
"""
_END_POLL_S = 0.05
"""Seconds between two looks into the history after the message about the end of the prompt."""
_CANCEL_S = constant("COMFYUI_CANCEL_S", 30.0)
"""Seconds that a cancelled prompt may go on. One node or step may take so long."""
_CANCEL_POLL_S = 0.2
_MOST_FAILURES = 3
"""Requests in succession without an answer, or with an error status, after which the server is
taken to be gone.
"""
_MOST_LOST = 2
"""Looks in succession without a trace of the prompt after which the prompt is taken to be lost. The
server moves a prompt from its queue to its history in two steps.
"""
_ENDS = {"execution_success", "execution_error", "execution_interrupted"}
_MOST_OUTPUTS = constant("COMFYUI_OUTPUTS", 256)
_MOST_OUTPUT_BYTES = constant("COMFYUI_OUTPUT_BYTES", 2**28)
"""Largest size of all outputs of a prompt in bytes. They are in memory together."""
_PARTS = 100
"""The progress of one node is counted in this many parts."""


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """The progress of a prompt: `done` of `total` parts, of which each node has `_PARTS`."""

    done: int
    total: int
    node_id: str = ""
    preview: bytes | None = None
    """A preview of the present node as JPEG or PNG; None if there is no new preview."""


@dataclass(frozen=True, slots=True)
class OutputFile:
    index: int
    node_id: str
    content: bytes
    media_type: str


class PromptRun:
    def __init__(
        self,
        client: ComfyUIClient,
        graph: Mapping[str, Any],
        prompt_id: str,
        *,
        extra_data: Mapping[str, Any] | None = None,
        is_shared: bool = True,
        poll_s: float = _POLL_S,
        silence_s: float = _STALLED_AFTER_S,
    ) -> None:
        """The owner of the websocket calls `note` with every message. `is_shared` says whether
        others may have prompts on the server.
        """
        self._client = client
        self._graph = graph
        self._prompt_id = prompt_id
        self._extra_data = extra_data or {}
        self._is_shared = is_shared
        self._poll_s = poll_s
        self._silence_s = silence_s
        self._cancel_s = _CANCEL_S
        self._changed = asyncio.Event()
        self._heard_at = time.monotonic()
        self._next_look_at = self._heard_at + poll_s
        self._ended_at = -math.inf
        """The time of the message about the end of the prompt."""
        self._entry: dict[str, Any] | None = None
        self._failures = 0
        self._lost = 0
        self._finished: set[str] = set()
        self._node_id = ""
        self._fraction = 0.0
        self._preview: bytes | None = None
        self._may_run = False
        """Whether the server may have the prompt in its queue."""
        self.is_waiting = False
        """Whether the prompt waits behind another one, as far as is known."""
        self.is_stuck = False
        """Whether it is not certain that the server has left the cancelled prompt."""

    @property
    def seconds_left(self) -> float:
        """Seconds for which the server may still be silent about this prompt."""
        return max(0.0, self._heard_at + self._silence_s - time.monotonic())

    async def run(self) -> AsyncGenerator[PromptProgress | OutputFile]:
        """Run the prompt, and yield its progress and then its outputs.

        If the generator is closed earlier, the prompt is cancelled. Raises ComfyUIError.
        """
        try:
            await self._submit()
            async with aclosing(self._wait()) as progress:
                async for each in progress:
                    yield each
            self._may_run = False
            assert self._entry is not None
            if (error := error_of(self._entry)) is not None:
                raise error
            async with aclosing(self._files(self._entry)) as files:
                async for file in files:
                    yield file
        except (ServerUnavailable, PromptStalled):
            self._cancel_s = 0.0  # One try is enough for a server that does not react.
            raise
        finally:
            # A cancelled prompt must leave the server also if the task of this run is cancelled.
            await asyncio.shield(self._leave())

    async def _submit(self) -> None:
        self._may_run = True
        try:
            self._prompt_id = await self._client.submit(
                self._graph, self._prompt_id, self._extra_data
            )
        except PromptRefused:
            self._may_run = False
            raise

    def note(self, message: Message) -> None:
        """Note a message of the websocket. Messages about other prompts are ignored."""
        data = message.data
        if data.get("prompt_id") != self._prompt_id:
            return
        self._heard_at = time.monotonic()
        self.is_waiting = False
        match message.type:
            case "execution_cached":
                nodes = data.get("nodes")
                self._finished.update(map(str, nodes if isinstance(nodes, list) else ()))
            case "executing" if data.get("node") is None:
                self._note_end()
            case "executing":
                self._finish(self._node_id)
                self._node_id, self._fraction = str(data.get("node")), 0.0
            case "executed":
                self._finish(str(data.get("node", "")))
            case "progress":
                self._fraction = _fraction(data)
            case "preview":
                self._preview = message.image
            case name if name in _ENDS:
                self._note_end()
        self._changed.set()

    def _note_end(self) -> None:
        self._ended_at = self._next_look_at = time.monotonic()

    def _finish(self, node_id: str) -> None:
        if node_id:
            self._finished.add(node_id)
        if node_id == self._node_id:
            self._fraction = 0.0

    def _progress(self) -> PromptProgress:
        total = max(1, len(self._graph))
        finished = len(self._finished & self._graph.keys())
        done = finished * _PARTS + int(self._fraction * _PARTS)
        preview, self._preview = self._preview, None
        return PromptProgress(min(done, total * _PARTS), total * _PARTS, self._node_id, preview)

    async def _wait(self) -> AsyncGenerator[PromptProgress]:
        """Yield the progress until the history entry of the prompt is written."""
        while self._entry is None:
            pause_s = max(0.0, self._next_look_at - time.monotonic())
            with suppress(TimeoutError):
                # Before Python 3.12, `wait_for` loses a cancel that comes together with a message.
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()
            if self._changed.is_set():
                self._changed.clear()
                yield self._progress()
            if time.monotonic() >= self._next_look_at:
                await self._look()

    async def _look(self) -> None:
        """Look for the prompt in the history and in the queue.

        Raises PromptLost, PromptStalled, ServerUnavailable, RequestFailed.
        """
        try:
            self._entry = await self._client.history(self._prompt_id)
            is_known = self._entry is not None or await self._find_in_queue()
        except (ServerUnavailable, RequestFailed):
            self._failures += 1
            if self._failures >= _MOST_FAILURES:
                raise
            is_known = True
        else:
            self._failures = 0
        self._lost = 0 if is_known else self._lost + 1
        if self._lost >= _MOST_LOST:
            raise PromptLost("ComfyUI does not know the prompt any more.")
        if not self.seconds_left and self._client.is_heard:
            text = f"ComfyUI has reported nothing about the prompt for {self._silence_s:g} s."
            raise PromptStalled(text)
        is_soon = self._lost > 0 or time.monotonic() < self._ended_at + self._poll_s
        self._next_look_at = time.monotonic() + (_END_POLL_S if is_soon else self._poll_s)

    async def _find_in_queue(self) -> bool:
        """Return whether the queue has the prompt.

        While the prompt of another user runs, a waiting prompt is not expected to make progress. On
        a server without other users, the other prompt was left there by a pack or by an earlier
        job. If it never ends, the server must be replaced.
        """
        running, pending = await self._client.queue()
        self.is_waiting = self._prompt_id in pending and bool(running)
        if self.is_waiting and self._is_shared:
            self._heard_at = time.monotonic()
        return self._prompt_id in running | pending

    async def _files(self, entry: Mapping[str, Any]) -> AsyncGenerator[OutputFile]:
        outputs = outputs_of(entry)
        if len(outputs) > _MOST_OUTPUTS:
            text = f"the graph has {len(outputs)} outputs, but at most {_MOST_OUTPUTS} are allowed"
            raise OutputTooLarge(text)
        left_bytes = _MOST_OUTPUT_BYTES
        for index, output in enumerate(outputs):
            if isinstance(output.content, FileReference):
                content = await self._client.download(output.content, max_bytes=left_bytes)
                media_type = media_type_of(output.content.filename)
            else:
                content, media_type = output.content.encode(errors="replace"), "text/plain"
            left_bytes -= len(content)
            yield OutputFile(index, output.node_id, content, media_type)

    async def _leave(self) -> None:
        """Cancel the prompt if it has not ended, and remove it from the history."""
        if self._may_run:
            self.is_stuck = not await self._cancel()
        with suppress(ServerUnavailable):
            await self._client.forget(self._prompt_id)

    async def _cancel(self) -> bool:
        """Cancel the prompt. Returns whether the server has left it within `_cancel_s` seconds.

        The server leaves a prompt between two steps or nodes.
        """
        give_up_at = time.monotonic() + self._cancel_s
        while True:
            with suppress(ServerUnavailable, RequestFailed):
                await self._client.cancel(self._prompt_id)
                running, pending = await self._client.queue()
                if self._prompt_id not in running | pending:
                    return True
            if time.monotonic() >= give_up_at:
                return False
            await asyncio.sleep(_CANCEL_POLL_S)


def _fraction(data: Mapping[str, Any]) -> float:
    value, most = data.get("value"), data.get("max")
    if not isinstance(value, int | float) or not isinstance(most, int | float) or most <= 0:
        return 0.0
    return min(1.0, max(0.0, value / most))
