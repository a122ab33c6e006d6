"""Workflows to test with, and a watcher of their runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Event
from typing import Any, TypeVar

from engine.engine import Engine, Run
from engine.errors import EngineError
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.reports import EngineEvent, Errored, Finished, ImageReady

TINY = "darkroom-tiny.safetensors"
DEADLINE_S = 300.0
Prompt = dict[str, Any]
Error = TypeVar("Error", bound=EngineError)


def text_to_image(**sampler: Any) -> dict[str, Any]:
    """The usual workflow at 64x64; keywords go to the sampler."""
    inputs = {
        "seed": 1,
        "steps": 4,
        "cfg": 7.0,
        "sampler_name": "euler",
        "scheduler": "normal",
        "denoise": 1.0,
        "model": ["4", 0],
        "positive": ["6", 0],
        "negative": ["7", 0],
        "latent_image": ["5", 0],
    }
    return {
        "4": node("CheckpointLoaderSimple", ckpt_name=TINY),
        "5": node("EmptyLatentImage", width=64, height=64, batch_size=1),
        "6": node("CLIPTextEncode", text="a red circle", clip=["4", 1]),
        "7": node("CLIPTextEncode", text="", clip=["4", 1]),
        "3": node("KSampler", **(inputs | sampler)),
        "8": node("VAEDecode", samples=["3", 0], vae=["4", 2]),
        "9": node("SaveImage", images=["8", 0], filename_prefix="x"),
    }


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def webui_texts_of(sampler: Prompt, text: str, negative: str = "", **options: Any) -> Prompt:
    """The WebUI's node for the texts of a sampler, which has them as its outputs 0 and 1."""
    names = ("steps", "sampler_name", "scheduler", "denoise", "model")
    schedule = {name: sampler["inputs"][name] for name in names}
    texts = {"text": text, "negative_text": negative, "steps_before": 0}
    return node("WebUITextEncode", clip=["4", 1], **texts, **schedule, **options)


def with_input(prompt: dict[str, Any], node_id: str, **inputs: Any) -> dict[str, Any]:
    """The prompt with some inputs of a node set."""
    changed = prompt[node_id]
    return {**prompt, node_id: {**changed, "inputs": {**changed["inputs"], **inputs}}}


def without_input(prompt: dict[str, Any], node_id: str, name: str) -> dict[str, Any]:
    """The prompt without one input of a node."""
    inputs = {key: value for key, value in prompt[node_id]["inputs"].items() if key != name}
    return {**prompt, node_id: {**prompt[node_id], "inputs": inputs}}


@dataclass(eq=False)
class Watched:
    """A run with the events that it reported, in order."""

    engine: Engine
    events: list[EngineEvent] = field(default_factory=list)
    queue: SimpleQueue[EngineEvent] = field(default_factory=SimpleQueue)
    run: Run | None = None

    def take(self, event: EngineEvent) -> None:
        self.queue.put(event)

    def next(self) -> EngineEvent:
        event = self.queue.get(timeout=DEADLINE_S)
        self.events.append(event)
        return event

    def wait(self) -> EngineEvent:
        """Wait for the end of the run, and return it."""
        while not (self.events and isinstance(self.events[-1], Finished | Errored)):
            self.next()
        return self.events[-1]

    def images(self) -> list[ImageReady]:
        """All images by index, once the run has ended well."""
        end = self.wait()
        assert isinstance(end, Finished), end
        found = [event for event in self.events if isinstance(event, ImageReady)]
        assert end.images == len(found)
        return sorted(found, key=lambda image: image.index)

    def error(self, kind: type[Error]) -> Error:
        """The error of that kind with which the run must end."""
        end = self.wait()
        assert isinstance(end, Errored), end
        assert isinstance(end.error, kind), end.error
        return end.error

    def cancel(self) -> None:
        assert self.run is not None
        self.engine.cancel(self.run)

    def take_result(self) -> None:
        assert self.run is not None
        self.engine.take_result(self.run)


Submit = Callable[..., Watched]
RunAll = Callable[..., list[Any]]


@contextmanager
def held(engine: Engine, models: ModelsFolder) -> Iterator[None]:
    """Hold the engine's device thread, so that runs that are submitted in this context start
    together.

    A run with a waiting callback holds it, because callbacks are called on that thread.
    """
    is_held, may_go_on = Event(), Event()

    def wait(event: EngineEvent) -> None:
        is_held.set()
        may_go_on.wait(DEADLINE_S)

    graph = {
        "1": node("EmptyImage", width=8, height=8, batch_size=1, color=0),
        "2": node("SaveImage", images=["1", 0], filename_prefix="held"),
    }
    engine.submit(validate(graph, Catalogue(models), Limits()), on_event=wait)
    assert is_held.wait(DEADLINE_S)
    try:
        yield
    finally:
        may_go_on.set()
