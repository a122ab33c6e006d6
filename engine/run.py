"""One run of a graph: its events, and the indexes of its images."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from engine.errors import EngineError
from engine.graph.graph import Graph, Node
from engine.graph.limits import Limits
from engine.reports import (
    EngineEvent,
    Errored,
    Finished,
    ImageReady,
    LatentReady,
    Note,
    Progress,
    SavedLatent,
)
from engine.stages import MOST_BESIDE, StageClock

OnEvent: TypeAlias = Callable[[EngineEvent], None]


class Run:
    """Calls `on_event` on the device thread; the last event is one Finished or Errored."""

    def __init__(
        self,
        graph: Graph,
        limits: Limits,
        on_event: OnEvent,
        *,
        on_cancel: Callable[[Run], None],
        on_take: Callable[[Run], None],
        first_index: Mapping[str, int] | None = None,
        max_untaken: int = 0,
        has_previews: bool = False,
        progress_period_s: float = 0.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.graph = graph
        self.limits = limits
        """Those that it is held to."""
        self.has_previews = has_previews
        """Whether it is to report what its pictures look like so far."""
        self.untaken = 0
        """How many results are reported and not taken. The device thread changes it."""
        self.stages = StageClock()
        """The device thread changes it."""
        self._on_event = on_event
        self._on_cancel = on_cancel
        self._on_take = on_take
        self._max_untaken = max_untaken
        self._progress_period_s = progress_period_s
        self._now = now
        self._next_progress_at = now()
        self._next_node_at = now() + progress_period_s
        self._node: Node | None = None
        """The one under way."""
        self._images = _ImageOrder(graph, first_index)
        self._steps_done = 0
        self._total_steps = graph.total_steps
        self._images_reported = 0
        self._notes: dict[Note, None] = {}
        self._ended = False

    def cancel(self) -> None:
        """Cancel the run, from any thread. Errored(Cancelled) follows unless the run has ended."""
        self._on_cancel(self)

    def take_result(self) -> None:
        """Say that a result was taken, from any thread."""
        self._on_take(self)

    @property
    def is_full(self) -> bool:
        """Whether results must be taken before there may be more of them."""
        return 0 < self._max_untaken <= self.untaken

    def report_steps(self, count: int) -> None:
        """Report that `count` more sampler steps are done, unless the last report is too recent.

        The last step of all is always reported: what follows it may take long.
        """
        self._steps_done += count
        now = self._now()
        if now >= self._next_progress_at or self._steps_done == self._total_steps:
            self._report_progress(now)

    def note_node(self, node: Node) -> None:
        """It is under way. Reported where nothing was for a while, unless every step is."""
        self._node = node
        if self._progress_period_s and (now := self._now()) >= self._next_node_at:
            self._report_progress(now)

    def note(self, note: Note) -> None:
        """What is said of it at its end."""
        self._notes[note] = None

    def report_preview(self, jpeg: bytes) -> None:
        """Report what its picture looks like so far."""
        self._report(self._progress(jpeg))

    def _report_progress(self, now: float) -> None:
        self._next_progress_at = self._next_node_at = now + self._progress_period_s
        self._report(self._progress())

    def _progress(self, preview: bytes | None = None) -> Progress:
        return Progress(
            self._steps_done,
            self._total_steps,
            node_id=self._node.id if self._node is not None else "",
            class_type=self._node.class_type if self._node is not None else "",
            rows=self.stages.last_rows,
            images=self._images_reported,
            preview=preview,
        )

    def report_images(self, node_id: str, images: Sequence[Any]) -> None:
        """Report the images of an output node, each (height, width, 3) uint8, or its latents."""
        for ready in self._images.add(node_id, images):
            self._images_reported += 1
            self.untaken += 1
            self._report(ready)

    def end(self, error: Exception | None) -> None:
        """Report the end of the run: success if `error` is None."""
        if error is None:
            last: EngineEvent = self._finished()
        elif isinstance(error, EngineError):
            last = Errored(error)
        else:
            last = Errored(EngineError(f"{type(error).__name__}: {error}"))
        self._report(last)
        self._ended = True

    def _finished(self) -> Finished:
        stage_s = {str(stage): round(s, 4) for stage, s in self.stages.seconds.items()}
        rows = self.stages.rows_per_call
        return Finished(
            self._images_reported,
            stage_s,
            None if rows is None else round(rows, 2),
            steps=self._steps_done,
            beside=tuple(sorted(self.stages.beside - {self.stages.name}))[:MOST_BESIDE],
            notes=tuple(self._notes),
        )

    def _report(self, event: EngineEvent) -> None:
        if not self._ended:
            self._on_event(event)


class _ImageOrder:
    """Gives images the same indexes in every attempt, in whatever order the nodes end.

    Without `first_index`, images are counted over the output nodes in the order of the graph. The
    images of a node are then held back until all output nodes before it have theirs.
    """

    def __init__(self, graph: Graph, first_index: Mapping[str, int] | None) -> None:
        self._graph = graph
        self._first_index = first_index
        self._expected = [node.id for node in graph.outputs]
        self._held: dict[str, Sequence[Any]] = {}
        self._next_index = 0
        if first_index is not None and (missing := set(self._expected) - set(first_index)):
            raise ValueError(f"first_index lacks {sorted(missing)}")

    def add(self, node_id: str, images: Sequence[Any]) -> list[ImageReady | LatentReady]:
        """Add the images of a node. Returns the events that are no longer held back."""
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
