"""Plan: what the engine is asked for, from what the caller asked for, in both flavours."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from actors.worker.image_file import AS_PNG, ImageEncoding
from engine.extra_data import pnginfo_of
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.reports import ImageReady, LatentReady
from engine.webui.compiler import compile_parameters
from engine.webui.infotext.hashes import NO_HASHES, network_hashes
from engine.webui.infotext.writing import infotext
from engine.webui.parameters import parse_parameters
from engine.webui.passes import Pass
from events.job import Job
from events.types import Flavour
from settings.version import VERSION


@dataclass(frozen=True, slots=True)
class Plan:
    prompt: Any
    """Node graph, not validated yet."""
    first_index: Mapping[str, int] | None
    """Index of each output node's first image; None: counted in the graph's order."""
    extra_pnginfo: Mapping[str, Any]
    limits: Limits | None = None
    """Those that the job was accepted within; None: those of the engine."""
    describe: Callable[[int], str] | None = None
    """The WebUI's text for the image of that index, in the flavour that is its own."""
    is_bare: bool = False
    """Its images do not say how they were made."""
    encoding: ImageEncoding = AS_PNG
    """Of its images."""


def planner(
    catalogue: Catalogue, limits: Limits, default_checkpoint: str | None
) -> Callable[[Job], Plan]:
    """A function from job to plan. It raises EngineError if the request does not hold (any more):
    what is on the log may be older than the checks of today.

    `limits`: of a job that does not say what its endpoint took when it was accepted.
    """

    def plan(job: Job) -> Plan:
        submitted = job.submitted
        encoding = ImageEncoding.asked(submitted.image_format, submitted.image_quality)
        return replace(plan_of(job), is_bare=bool(submitted.bare), encoding=encoding)

    def plan_of(job: Job) -> Plan:
        request, own = job.submitted.request, _limits_of(job, limits)
        if job.submitted.flavour is Flavour.WORKFLOW:
            return Plan(request.get("prompt"), None, pnginfo_of(request.get("extra_data")), own)
        parameters = parse_parameters(request, _compatibility_of(job))
        compiled = compile_parameters(
            parameters,
            catalogue,
            own,
            default_checkpoint=default_checkpoint,
            skip=frozenset(image.index for image in job.images),
        )
        hashes = NO_HASHES
        if not job.submitted.bare:
            hashes = network_hashes(catalogue.models, *_networks(compiled.passes))
        return Plan(
            compiled.prompt,
            compiled.first_index,
            {},
            own,
            describe=lambda index: infotext(
                parameters, compiled, index, version=VERSION, hashes=hashes
            ),
        )

    return plan


def _networks(passes: Sequence[Pass]) -> tuple[set[str], set[str]]:
    """The LoRAs of passes, and the texts that may name embeddings."""
    loras = {each.name for pass_ in passes for each in pass_.loras}
    return loras, {text for pass_ in passes for text in (pass_.prompt, pass_.negative_prompt)}


def _compatibility_of(job: Job) -> str:
    terms = job.submitted.terms
    return (terms and terms.compatibility) or "comfyui"


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
    """What a file says of itself, as in ComfyUI: the graph, and what its front end sent along.

    In the diffusion flavour the WebUI's `parameters` too. Of a bare plan nothing.
    """
    if plan.is_bare:
        return {}
    text = {"prompt": json.dumps(plan.prompt)}
    if plan.describe is not None:
        text["parameters"] = plan.describe(result.index)
    if result.seed is not None:
        text["seed"] = str(result.seed)
    return text | {name: json.dumps(value) for name, value in plan.extra_pnginfo.items()}


def checkpoint_of(job: Job) -> str | None:
    """The checkpoint that the request names first, if any. Raises nothing, whatever it holds."""
    request = job.submitted.request
    if job.submitted.flavour is Flavour.DIFFUSION:
        places = (request.get("override_settings"), request)
        names = [_member(place, "sd_model_checkpoint") for place in places]
    else:
        prompt = request.get("prompt")
        nodes = prompt.values() if isinstance(prompt, Mapping) else ()
        names = [_member(_member(node, "inputs"), "ckpt_name") for node in nodes]
    return next((name for name in names if isinstance(name, str) and name), None)


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None
