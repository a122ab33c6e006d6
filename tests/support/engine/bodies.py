"""Runs the body of a node alone, with plain tensors as inputs."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, cast

import torch

from engine.diffusion.context import Context
from engine.executor import BODIES
from engine.graph.limits import Limits


def outputs_of(
    class_type: str,
    *,
    limits: Limits | None = None,
    files: Mapping[str, bytes] | None = None,
    **inputs: Any,
) -> Any:
    """Return the outputs of a body; its requests are run one by one."""
    context = Context(
        cast("Any", None),
        on_steps=lambda _: None,
        input_files=files or {},
        limits=limits or Limits(),
    )
    with torch.inference_mode():
        work = BODIES[class_type](context, **inputs)
        if not isinstance(work, Generator):
            return work
        return driven(work)


def output_of(class_type: str, **inputs: Any) -> Any:
    """The only output of a body."""
    (found,) = outputs_of(class_type, **inputs)
    return found


def driven(work: Generator[Any, Any, Any]) -> Any:
    """Return the result of the work; its requests are run one by one."""
    try:
        request = next(work)
        while True:
            try:
                (result,) = type(request).run_batch([request])
            except Exception as error:  # noqa: BLE001 - the executor hands it to the body too
                request = work.throw(error)
            else:
                request = work.send(result)
    except StopIteration as stop:
        return stop.value
