"""Plan: the request to the engine, made from the `Submitted` of a job of either flavour."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from actors.worker.result_file import AS_PNG, ImageEncoding
from engine.interface import (
    ImageReady,
    ImageSettings,
    LatentReady,
    Limits,
    ModelsFolder,
    pnginfo_of,
)
from events.job import Job
from events.types import Compiled, Flavour, Infotext, Submitted
from settings.version import VERSION


@dataclass(frozen=True, slots=True)
class Plan:
    prompt: Any
    """Node graph. It is not validated yet."""
    first_index: Mapping[str, int] | None
    """Index of the first image of each output node. With None, images are counted in the order of
    the graph.
    """
    extra_pnginfo: Mapping[str, Any]
    limits: Limits
    """Limits within which the job was accepted."""
    describe: Callable[[int], str] | None = None
    """Returns the WebUI's text for the image with an index. None if images have no such text."""
    is_bare: bool = False
    """Whether images are stored without the parameters from which they were made."""
    encoding: ImageEncoding = AS_PNG


def planner(models: ModelsFolder, limits: Limits) -> Callable[[Job], Plan]:
    """A function that makes the plan of a job. It raises EngineError for invalid metadata.

    `limits` applies to a job without recorded terms, and has the limits that terms do not have.
    """

    def plan(job: Job) -> Plan:
        submitted = job.submitted
        prompt, first_index = submitted.graph, None
        if submitted.compiled is not None:
            stored = {image.index for image in job.images}
            prompt, first_index = _without_images(submitted.compiled, stored)
        is_workflow = submitted.flavour is Flavour.WORKFLOW
        return Plan(
            prompt,
            first_index,
            pnginfo_of(submitted.request.get("extra_data")) if is_workflow else {},
            _limits_of(job, limits),
            describe=_describe(submitted, models),
            is_bare=bool(submitted.bare),
            encoding=ImageEncoding.asked(submitted.image_format, submitted.image_quality),
        )

    return plan


def _without_images(
    compiled: Compiled, stored: Collection[int]
) -> tuple[dict[str, Any], dict[str, int]]:
    """The graph without the images in `stored`, and the indexes of the other images.

    An earlier attempt has stored the images in `stored`. Nodes that only these images need are
    removed.
    """
    graph = compiled.graph
    first_index = {id: index for id, index in compiled.first_index.items() if index not in stored}
    if len(first_index) == len(compiled.first_index):
        return graph, first_index
    needed = set[str]()
    pending = list(first_index)
    while pending:
        node_id = pending.pop()
        if node_id not in needed:
            needed.add(node_id)
            values = graph[node_id]["inputs"].values()
            pending += [value[0] for value in values if isinstance(value, list)]
    return {id: node for id, node in graph.items() if id in needed}, first_index


def _describe(submitted: Submitted, models: ModelsFolder) -> Callable[[int], str] | None:
    compiled = submitted.compiled
    if compiled is None or compiled.infotext is None:
        return None
    recorded: Infotext = compiled.infotext
    settings = ImageSettings(recorded.settings, recorded.seeds, recorded.variation_seeds)
    return settings.describe(submitted.request, compiled.graph, models, VERSION)


def _limits_of(job: Job, limits: Limits) -> Limits:
    terms = job.submitted.terms
    if terms is None:
        return limits
    return replace(
        limits,
        max_pixels=terms.max_pixels,
        max_steps=terms.max_steps,
        max_cost=terms.max_cost,
    )


def plan_text(plan: Plan, result: ImageReady | LatentReady) -> dict[str, str]:
    """The metadata of a file as in ComfyUI: the graph, and additional data of the front end.

    In the diffusion flavour the metadata includes the WebUI's `parameters`. For a bare plan the
    metadata is empty.
    """
    if plan.is_bare:
        return {}
    text = {"prompt": json.dumps(plan.prompt)}
    if plan.describe is not None:
        text["parameters"] = plan.describe(result.index)
    if result.seed is not None:
        text["seed"] = str(result.seed)
    return text | {name: json.dumps(value) for name, value in plan.extra_pnginfo.items()}
