"""Engines over a models folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.activity import OnActive, ignore_active
from engine.engine import Engine
from engine.graph.catalogue import Catalogue
from engine.graph.declarations import NodeType
from engine.graph.graph import Graph
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.options import RunOptions
from tests.support.engine.workflows import Watched


class Running:
    """An engine, and the catalogue of what it may use."""

    def __init__(self, root: Path, nodes: Sequence[NodeType] = (), **options: Any) -> None:
        self.models = ModelsFolder(root, ttl_s=0)
        self.catalogue = Catalogue(self.models, nodes)
        self.engine = Engine(models=self.models, more_nodes=nodes, **options)

    def submit(
        self,
        prompt: dict[str, Any] | Graph,
        *,
        within: Limits | None = None,
        on_active: OnActive = ignore_active,
        on_joined: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> Watched:
        """Submit a graph, or a prompt that is valid within these limits."""
        if not isinstance(prompt, Graph):
            prompt = validate(prompt, self.catalogue, within or Limits())
        watched = Watched(self.engine)
        watched.run = self.engine.submit(
            prompt,
            RunOptions(**options),
            on_event=watched.take,
            on_active=on_active,
            on_joined=on_joined,
        )
        return watched

    def pictures(self, *prompts: dict[str, Any]) -> list[Any]:
        """The levels of the first image of each prompt, all run at once."""
        watched = [self.submit(each) for each in prompts]
        return [each.images()[0].pixels.astype(int) for each in watched]


@contextmanager
def running(root: Path, nodes: Sequence[NodeType] = (), **options: Any) -> Iterator[Running]:
    """An engine that is started, and stopped at the end."""
    found = Running(root, nodes, **options)
    found.engine.start()
    try:
        yield found
    finally:
        found.engine.stop()
