"""One graph on its way through the engine, and the order in which its images are told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from engine.errors import EngineError
from engine.graph.graph import Graph
from engine.reports import (
    EngineEvent,
    Errored,
    Finished,
    ImageReady,
    LatentReady,
    Progress,
    SavedLatent,
)

OnEvent: TypeAlias = Callable[[EngineEvent], None]


class Run:
    """Tells `on_event` what happens, on the device thread; the last is one Finished or Errored."""

    def __init__(
        self,
        graph: Graph,
        *,
        on_event: OnEvent,
        on_cancel: Callable[[Run], None],
        first_index: Mapping[str, int] | None = None,
    ) -> None:
        self.graph = graph
        self._on_event = on_event
        self._on_cancel = on_cancel
        self._images = _ImageOrder(graph, first_index)
        self._steps_done = 0
        self._total_steps = graph.total_steps
        self._told = 0
        self._ended = False

    def cancel(self) -> None:
        """Ask for the end, from any thread: Errored(Cancelled) follows unless the run has ended."""
        self._on_cancel(self)

    def take_steps(self, count: int) -> None:
        """Sampler steps were taken."""
        self._steps_done += count
        self._tell(Progress(self._steps_done, self._total_steps))

    def take_images(self, node_id: str, images: Sequence[Any]) -> None:
        """An output node's images, each (height, width, 3) uint8, or latents."""
        for ready in self._images.take(node_id, images):
            self._told += 1
            self._tell(ready)

    def end(self, error: Exception | None) -> None:
        """The run is over."""
        if error is None:
            last: EngineEvent = Finished(self._told)
        elif isinstance(error, EngineError):
            last = Errored(error)
        else:
            last = Errored(EngineError(f"{type(error).__name__}: {error}"))
        self._tell(last)
        self._ended = True

    def _tell(self, event: EngineEvent) -> None:
        if not self._ended:
            self._on_event(event)


class _ImageOrder:
    """Numbers images the same way in every attempt, however the nodes happen to end.

    Without given indexes they are counted over the output nodes in the graph's order, so an output
    node's images are held back until all before it have theirs.
    """

    def __init__(self, graph: Graph, first_index: Mapping[str, int] | None) -> None:
        self._graph = graph
        self._first_index = first_index
        self._expected = [node.id for node in graph.outputs]
        self._held: dict[str, Sequence[Any]] = {}
        self._next_index = 0
        if first_index is not None and (missing := set(self._expected) - set(first_index)):
            raise ValueError(f"first_index lacks {sorted(missing)}")

    def take(self, node_id: str, images: Sequence[Any]) -> list[ImageReady | LatentReady]:
        """Hand in a node's images; those that may be told now."""
        if self._first_index is not None:
            return self._numbered(node_id, images, self._first_index[node_id])
        self._held[node_id] = images
        ready: list[ImageReady | LatentReady] = []
        while self._expected and self._expected[0] in self._held:
            next_id = self._expected.pop(0)
            ready += self._numbered(next_id, self._held.pop(next_id), self._next_index + len(ready))
        self._next_index += len(ready)
        return ready

    def _numbered(
        self, node_id: str, images: Sequence[Any], first: int
    ) -> list[ImageReady | LatentReady]:
        seed = self._graph.seed_of(node_id)
        return [
            LatentReady(index, node_id, each.samples, seed)
            if isinstance(each, SavedLatent)
            else ImageReady(index, node_id, each, seed)
            for index, each in enumerate(images, first)
        ]
