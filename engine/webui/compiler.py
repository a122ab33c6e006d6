"""Compiles a diffusion request to a prompt: a node graph in ComfyUI's API format."""

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
    """A compiled request. `first_index` has the index of the image that each output node makes."""

    prompt: dict[str, Any]
    first_index: dict[str, int]
    seeds: tuple[int, ...]
    """The seed of every image of the request; those of skipped images are included."""
    passes: tuple[Pass, ...]
    """The first pass and, with the hires fix, the second."""


def compile_parameters(
    parameters: DiffusionParameters,
    catalogue: Catalogue,
    limits: Limits,
    *,
    default_checkpoint: str | None,
    skip: frozenset[int] = frozenset(),
) -> Compiled:
    """Compile a request. Image `i` has its own sampler, with seed + i; images in `skip` have none.

    Raises ParametersInvalid if a model is unknown, a text prompt cannot be parsed or a limit is
    exceeded. A negative seed must have been replaced before, see `with_seed`.
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
    """Raise ParametersInvalid if `eta` is not the fixed eta of the samplers.

    It is 0 for DDIM and 1 for samplers that add noise. Other samplers ignore it.
    """
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
    """A pass with the links to its models."""

    pass_: Pass
    prefix: str
    model: _Link
    clip: _Link
    vae: _Link


class _Writer:
    """Writes the nodes of one request. The node ids of the second pass begin with `hires-`."""

    def __init__(self, parameters: DiffusionParameters) -> None:
        self.nodes: dict[str, Any] = {}
        self._parameters = parameters

    def write(
        self, passes: Sequence[Pass], upscaler: Upscaler | None, seeds: Mapping[int, int]
    ) -> None:
        """Write all nodes. `seeds` has the seed of each image by its index."""
        last = first = self._stage(passes[0], "")
        if upscaler is not None:
            last = self._stage(passes[1], "hires-", first)
            if upscaler.by == "model":
                self._add("upscaler", "UpscaleModelLoader", model_name=upscaler.name)
        size = {"width": first.pass_.width, "height": first.pass_.height}
        empty = self._add("latent", "EmptyLatentImage", **size, batch_size=1)
        for index, seed in seeds.items():
            latent = self._sample(first, index, seed=seed, latent=empty)
            if upscaler is not None:
                larger = self._enlarge(latent, index, upscaler, stages=(first, last))
                latent = self._sample(last, index, seed=seed, latent=larger)
            image = self._add(f"decode-{index}", "VAEDecode", samples=latent, vae=last.vae)
            self._add(f"save-{index}", "SaveImage", images=image, filename_prefix="darkroom")

    def _stage(self, pass_: Pass, prefix: str, earlier: _Stage | None = None) -> _Stage:
        """Add the models and texts of a pass. Models that `earlier` has loaded are shared."""
        if earlier and (earlier.pass_.checkpoint, earlier.pass_.loras) == (
            pass_.checkpoint,
            pass_.loras,
        ):
            stage = replace(earlier, pass_=pass_, prefix=prefix)
        else:
            stage = self._models(pass_, prefix)
        self._add(
            f"{prefix}text",
            "WebUITextEncode",
            clip=stage.clip,
            model=stage.model,
            text=pass_.prompt,
            negative_text=pass_.negative_prompt,
            steps_before=pass_.steps_before,
            **_schedule(pass_),
        )
        return stage

    def _models(self, pass_: Pass, prefix: str) -> _Stage:
        source = f"{prefix}checkpoint"
        self._add(source, "CheckpointLoaderSimple", ckpt_name=pass_.checkpoint)
        model, clip, vae = [source, 0], [source, 1], [source, 2]
        for place, lora in enumerate(pass_.loras):
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
        if pass_.vae is not None:
            vae = self._add(f"{prefix}vae", "VAELoader", vae_name=pass_.vae)
        return _Stage(pass_, prefix, model=model, clip=clip, vae=vae)

    def _sample(self, stage: _Stage, index: int, *, seed: int, latent: _Link) -> _Link:
        text = f"{stage.prefix}text"
        delta = self._parameters.override_settings.eta_noise_seed_delta
        noise = {}
        if delta and names.SAMPLER_OF[stage.pass_.sampler].noise == "independent":
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
            **_schedule(stage.pass_),
        )

    def _enlarge(
        self, latent: _Link, index: int, upscaler: Upscaler, *, stages: tuple[_Stage, _Stage]
    ) -> _Link:
        """Add the nodes that enlarge a latent for the second pass. Returns the larger latent."""
        first, second = stages
        crops = self._parameters.hr_resize_x and self._parameters.hr_resize_y
        size = {
            "width": second.pass_.width,
            "height": second.pass_.height,
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
        """Add a node. Returns the link to its first output."""
        self.nodes[name] = {"class_type": class_type, "inputs": inputs}
        return [name, 0]


def _schedule(pass_: Pass) -> dict[str, Any]:
    return {
        "steps": pass_.steps,
        "sampler_name": pass_.sampler,
        "scheduler": pass_.scheduler,
        "denoise": pass_.denoise,
    }
