"""From the diffusion flavour to the node graph that a workflow is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from engine.errors import FieldError, ParametersInvalid
from engine.graph import names
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.webui.parameters import SEEDS, DiffusionParameters
from engine.webui.passes import Pass, Upscaler, first_pass, second_pass, upscaler_of

_Link: TypeAlias = list[Any]


@dataclass(frozen=True, slots=True)
class Compiled:
    """A node graph in ComfyUI's API format, and which image each of its output nodes makes."""

    prompt: dict[str, Any]
    first_index: dict[str, int]
    seeds: tuple[int, ...]
    """The seed of every image asked for, skipped or not."""
    passes: tuple[Pass, ...]
    """The one or two passes that it is made of."""


def compile_parameters(
    parameters: DiffusionParameters,
    catalogue: Catalogue,
    limits: Limits,
    *,
    default_checkpoint: str | None,
    skip: frozenset[int] = frozenset(),
) -> Compiled:
    """The node graph: one sampler per image with seed + i; images in `skip` are left out.

    Raises ParametersInvalid where a model is not known, a prompt cannot be read or a limit is
    passed. The seed must have been drawn.
    """
    if parameters.seed < 0:
        raise ValueError("draw the seed first: see with_seed")
    passes = [first_pass(parameters, catalogue, default_checkpoint)]
    upscaler = None
    if parameters.enable_hr:
        passes.append(second_pass(parameters, passes[0], catalogue))
        upscaler = upscaler_of(parameters, catalogue)
    _require_neutral_eta(parameters.eta, passes)
    _require_limits(parameters, passes, limits)
    seeds = tuple((parameters.seed + i) % SEEDS for i in range(parameters.images))
    images = [index for index in range(parameters.images) if index not in skip]
    writer = _Writer(parameters)
    writer.write(passes, upscaler, {index: seeds[index] for index in images})
    first_index = {f"save-{index}": index for index in images}
    return Compiled(writer.nodes, first_index, seeds, tuple(passes))


def _require_neutral_eta(eta: float | None, passes: Sequence[Pass]) -> None:
    """Samplers that add noise add as much as they do at an eta of 1; DDIM has one of 0."""
    for sampler in {each.sampler for each in passes}:
        neutral = {0.0} if sampler == "ddim" else {0.0, 1.0}
        if names.SAMPLER_OF[sampler].noise != "none":
            neutral = {1.0}
        if eta is not None and eta not in neutral:
            taken = " or ".join(f"{each:g}" for each in sorted(neutral))
            message = f"is supported as {taken} only with {sampler}"
            raise ParametersInvalid((FieldError("value_error", message, "eta"),))


def _require_limits(parameters: DiffusionParameters, passes: list[Pass], limits: Limits) -> None:
    sides = (limits.min_side, limits.max_side)
    steps = sum(each.steps for each in passes)
    ranges = {
        "width": (passes[0].width, *sides),
        "height": (passes[0].height, *sides),
        "steps": (steps, 1, limits.max_steps),
        "batch_size": (parameters.images, 1, limits.max_batch),
    }
    if len(passes) > 1:
        ranges |= {"hr_resize_x": (passes[1].width, *sides)}
        ranges |= {"hr_resize_y": (passes[1].height, *sides)}
    errors = [
        FieldError("out_of_range", f"must be {least} to {most}, in all it is {value}", name)
        for name, (value, least, most) in ranges.items()
        if not least <= value <= most
    ]
    pixels = sum(each.width * each.height for each in passes) * parameters.images
    if pixels > limits.max_pixels:
        message = f"width x height x images is {pixels}, at most {limits.max_pixels}"
        errors.append(FieldError("too_many_pixels", message, "width"))
    if errors:
        raise ParametersInvalid(tuple(errors))


@dataclass(frozen=True, slots=True)
class _Stage:
    """A pass, and where it has its models from."""

    made: Pass
    prefix: str
    model: _Link
    clip: _Link
    vae: _Link


class _Writer:
    """Writes the nodes of one request; those of the second pass have names with `hires-`."""

    def __init__(self, parameters: DiffusionParameters) -> None:
        self.nodes: dict[str, Any] = {}
        self._parameters = parameters

    def write(
        self, passes: Sequence[Pass], upscaler: Upscaler | None, seeds: Mapping[int, int]
    ) -> None:
        """`seeds` by the index of their images."""
        last = first = self._stage(passes[0], "")
        if upscaler is not None:
            last = self._stage(passes[1], "hires-", first)
            if upscaler.by == "model":
                self._add("upscaler", "UpscaleModelLoader", model_name=upscaler.name)
        size = {"width": first.made.width, "height": first.made.height}
        empty = self._add("latent", "EmptyLatentImage", **size, batch_size=1)
        for index, seed in seeds.items():
            latent = self._sample(first, index, seed=seed, latent=empty)
            if upscaler is not None:
                larger = self._enlarge(latent, index, upscaler, stages=(first, last))
                latent = self._sample(last, index, seed=seed, latent=larger)
            image = self._add(f"decode-{index}", "VAEDecode", samples=latent, vae=last.vae)
            self._add(f"save-{index}", "SaveImage", images=image, filename_prefix="darkroom")

    def _stage(self, made: Pass, prefix: str, earlier: _Stage | None = None) -> _Stage:
        """Its models and its texts; models that an earlier stage has are not loaded again."""
        if earlier and (earlier.made.checkpoint, earlier.made.loras) == (
            made.checkpoint,
            made.loras,
        ):
            stage = replace(earlier, made=made, prefix=prefix)
        else:
            stage = self._models(made, prefix)
        self._add(
            f"{prefix}text",
            "WebUITextEncode",
            clip=stage.clip,
            model=stage.model,
            text=made.prompt,
            negative_text=made.negative_prompt,
            steps_before=made.steps_before,
            **_schedule(made),
        )
        return stage

    def _models(self, made: Pass, prefix: str) -> _Stage:
        source = f"{prefix}checkpoint"
        self._add(source, "CheckpointLoaderSimple", ckpt_name=made.checkpoint)
        model, clip, vae = [source, 0], [source, 1], [source, 2]
        for place, lora in enumerate(made.loras):
            loaded = f"{prefix}lora-{place}"
            self._add(
                loaded,
                "LoraLoader",
                model=model,
                clip=clip,
                lora_name=lora.name,
                strength_model=lora.strength_model,
                strength_clip=lora.strength_clip,
            )
            model, clip = [loaded, 0], [loaded, 1]
        if (layer := self._parameters.stops_at_layer) > 1:
            clip = self._add(
                f"{prefix}clip", "CLIPSetLastLayer", clip=clip, stop_at_clip_layer=-layer
            )
        if made.vae is not None:
            vae = self._add(f"{prefix}vae", "VAELoader", vae_name=made.vae)
        return _Stage(made, prefix, model=model, clip=clip, vae=vae)

    def _sample(self, stage: _Stage, index: int, *, seed: int, latent: _Link) -> _Link:
        text = f"{stage.prefix}text"
        delta = self._parameters.override_settings.eta_noise_seed_delta
        noise = {}
        if delta and names.SAMPLER_OF[stage.made.sampler].noise == "fresh":
            noise = {"eta_noise_seed_delta": delta}
        return self._add(
            f"{stage.prefix}sample-{index}",
            "WebUISampler" if noise else "KSampler",
            model=stage.model,
            positive=[text, 0],
            negative=[text, 1],
            latent_image=latent,
            seed=seed,
            cfg=self._parameters.cfg_scale,
            **noise,
            **_schedule(stage.made),
        )

    def _enlarge(
        self, latent: _Link, index: int, upscaler: Upscaler, *, stages: tuple[_Stage, _Stage]
    ) -> _Link:
        """The latent that the second stage begins with."""
        first, second = stages
        crops = self._parameters.hr_resize_x and self._parameters.hr_resize_y
        size = {
            "width": second.made.width,
            "height": second.made.height,
            "crop": "center" if crops else "disabled",
        }
        if upscaler.by == "latent":
            method = upscaler.name
            return self._add(
                f"larger-{index}",
                "WebUILatentUpscale",
                samples=latent,
                upscale_method=method,
                **size,
            )
        image = self._add(f"small-{index}", "VAEDecode", samples=latent, vae=first.vae)
        method = upscaler.name
        if upscaler.by == "model":
            image = self._add(
                f"upscaled-{index}",
                "ImageUpscaleWithModel",
                upscale_model=["upscaler", 0],
                image=image,
            )
            method = "lanczos"
        larger = self._add(
            f"larger-{index}", "ImageScale", image=image, upscale_method=method, **size
        )
        return self._add(f"encode-{index}", "VAEEncode", pixels=larger, vae=second.vae)

    def _add(self, name: str, class_type: str, **inputs: Any) -> _Link:
        """Its first output."""
        self.nodes[name] = {"class_type": class_type, "inputs": inputs}
        return [name, 0]


def _schedule(made: Pass) -> dict[str, Any]:
    return {
        "steps": made.steps,
        "sampler_name": made.sampler,
        "scheduler": made.scheduler,
        "denoise": made.denoise,
    }
