"""Makes pictures with the engine, from the parameters of diffusion requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.engine import Engine
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.options import DeviceOptions
from engine.reports import EngineEvent, Errored, Finished, ImageReady
from engine.webui.compiler import compile_parameters
from engine.webui.parameters import parse_parameters
from training.shapes.scenes import SIDE

_DEADLINE_S = 600.0


class Studio:
    def __init__(self, engine: Engine, catalogue: Catalogue, checkpoint: str) -> None:
        self._engine = engine
        self._catalogue = catalogue
        self._checkpoint = checkpoint

    def generate(self, requests: Sequence[Mapping[str, Any]]) -> NDArray[np.uint8]:
        """Return (n, height, width, 3), by default 64x64. Raises EngineError if a request fails."""
        queues = [self._submit(request) for request in requests]
        return np.stack([_picture(queue) for queue in queues])

    def _submit(self, request: Mapping[str, Any]) -> SimpleQueue[EngineEvent]:
        parameters = parse_parameters({"width": SIDE, "height": SIDE, **request})
        compiled = compile_parameters(
            parameters, self._catalogue.models, Limits(), default_checkpoint=self._checkpoint
        )
        events: SimpleQueue[EngineEvent] = SimpleQueue()
        graph = validate(compiled.prompt, self._catalogue, Limits())
        self._engine.submit(graph, on_event=events.put)
        return events


@contextmanager
def open_studio(checkpoint: Path, threads: int | None = None) -> Iterator[Studio]:
    """Start an engine for a checkpoint in the folder `checkpoints` of a models folder."""
    models = ModelsFolder(checkpoint.parents[1])
    engine = Engine(models=models, options=DeviceOptions(threads=threads))
    engine.start()
    try:
        yield Studio(engine, Catalogue(models), checkpoint.name)
    finally:
        engine.stop()


def _picture(events: SimpleQueue[EngineEvent]) -> NDArray[np.uint8]:
    found: NDArray[np.uint8] | None = None
    while True:
        match events.get(timeout=_DEADLINE_S):
            case ImageReady(pixels=pixels):
                found = pixels
            case Errored(error=error):
                raise error
            case Finished():
                assert found is not None
                return found
