"""Compiles a diffusion request to a prompt: a node graph in ComfyUI's API format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from engine.errors import FieldError, ParametersInvalid
from engine.graph import names
from engine.graph.limits import Limits
from engine.graph.models_folder import UPSCALE_MODELS
from engine.graph.names import Sampler
from engine.webui.model_names import Models
from engine.webui.parameters import DiffusionParameters, RandnSource
from engine.webui.passes import Pass, first_pass, second_pass, with_refiner
from engine.webui.sampler_names import SAMPLER_OF, follows_timesteps, noise_options
from engine.webui.upscalers import UPSCALERS, Upscaler, upscaler_named

Link: TypeAlias = list[Any]
Add: TypeAlias = Callable[..., Link]
"""Adds a node with an id, a class and inputs. Returns the link to the node's first output."""


def taken_steps_input(pass_: Pass) -> dict[str, Any]:
    """Return the input with the number of steps to take, if it is not the whole schedule."""
    return {"taken_steps": pass_.taken_steps} if pass_.taken_steps else {}


def start_options(parameters: DiffusionParameters, pass_: Pass) -> dict[str, Any]:
    """Return the inputs of the WebUI's sampler that depend on initial images."""
    found = taken_steps_input(pass_)
    if pass_.is_from_images and parameters.noise_multiplier != 1.0:
        found["noise_multiplier"] = parameters.noise_multiplier
    if pass_.is_from_images and parameters.mask is not None:
        found["renews_kept"] = False
    return found


class InitialImages:
    """Writes the nodes for the initial images of a request. Images share nodes where possible."""

    def __init__(
        self, parameters: DiffusionParameters, pass_: Pass, add: Add, *, model: Link, vae: Link
    ) -> None:
        self._parameters = parameters
        self._size = {"width": pass_.width, "height": pass_.height}
        self._add = add
        self._model = model
        self._vae = vae
        self._latents: dict[int, Link] = {}

    def latent(self, index: int) -> Link:
        asked = self._parameters
        position = index % asked.batch
        own_noise = asked.mask is not None and asked.masked_content == "latent noise"
        shared = position if own_noise or len(asked.init_images) > 1 else 0
        if shared not in self._latents:
            make = self._webui if asked.compatibility == "webui" else self._comfyui
            self._latents[shared] = make(shared, position % len(asked.init_images))
        return self._latents[shared]

    def finished(self, image: Link, index: int) -> Link:
        """Return the image, with the unmasked part pasted from the initial image."""
        asked = self._parameters
        if asked.mask is None or asked.compatibility == "comfyui":
            return image
        source = index % asked.batch % len(asked.init_images)
        return self._add(
            f"pasted-{index}",
            "WebUIPaste",
            image=image,
            original=[f"start-{source}", 0],
            mask=["mask", 0],
            only_masked=asked.inpaint_full_res,
            padding=asked.inpaint_full_res_padding,
        )

    def _webui(self, position: int, source: int) -> Link:
        asked = self._parameters
        pixels, mask = self._pixels(source)
        if mask is not None and asked.masked_content != "original":
            pixels = self._add(f"filled-{position}", "WebUIFill", image=pixels, mask=mask)
        latent = self._add(f"encode-{position}", "VAEEncode", pixels=pixels, vae=self._vae)
        if asked.resizing == "latent upscale":
            latent = self._add(
                f"stretched-{position}",
                "WebUILatentUpscale",
                samples=latent,
                upscale_method="bilinear",
                crop="disabled",
                **self._size,
            )
        if mask is None:
            return latent
        return self._add(
            f"masked-{position}",
            "WebUILatentMask",
            model=self._model,
            samples=latent,
            mask=mask,
            content=asked.masked_content,
            randn_source=asked.override_settings.randn_source or "GPU",
            seed=asked.seed_of(position),
        )

    def _pixels(self, source: int) -> tuple[Link, Link | None]:
        asked, mode = self._parameters, self._parameters.resizing
        keeps_size = asked.is_only_masked or mode == "latent upscale"
        fitting = mode if mode != "latent upscale" else "just resize"
        name = f"image-{source}"
        self._load(name, asked.init_images[source])
        start = self._add(
            f"start-{source}",
            "WebUIInitImage",
            image=[name, 0],
            transparency=[name, 1],
            resize_mode=fitting,
            **({"width": 0, "height": 0} if keeps_size else self._size),
        )
        if asked.mask is None:
            return start, None
        area = f"area-{source}"
        self._add(
            area,
            "WebUIInpaintArea",
            image=start,
            mask=self._painted_mask(asked.mask),
            resize_mode=fitting,
            only_masked=asked.inpaint_full_res,
            padding=asked.inpaint_full_res_padding,
            **self._size,
        )
        return [area, 0], [area, 1]

    def _painted_mask(self, name: str) -> Link:
        blur_x, blur_y = self._parameters.blurs
        self._load("mask-image", name)
        return self._add(
            "mask",
            "WebUIMask",
            image=["mask-image", 0],
            transparency=["mask-image", 1],
            invert=self._parameters.inpainting_mask_invert,
            blur_x=blur_x,
            blur_y=blur_y,
        )

    def _comfyui(self, position: int, source: int) -> Link:
        """Return the latent from nodes that ComfyUI also has."""
        asked, mode = self._parameters, self._parameters.resizing
        image = self._load(f"image-{source}", asked.init_images[source])
        if mode != "latent upscale":
            crop = "center" if mode == "crop and resize" else "disabled"
            image = self._add(
                f"start-{source}",
                "ImageScale",
                image=image,
                upscale_method="lanczos",
                crop=crop,
                **self._size,
            )
        latent = self._add(f"encode-{position}", "VAEEncode", pixels=image, vae=self._vae)
        if mode == "latent upscale":
            latent = self._add(
                f"stretched-{position}",
                "LatentUpscale",
                samples=latent,
                upscale_method="bilinear",
                crop="disabled",
                **self._size,
            )
        if asked.mask is None:
            return latent
        mask = self._add("mask", "LoadImageMask", image=asked.mask, channel="red")
        if asked.inpainting_mask_invert:
            mask = self._add("mask-inverted", "InvertMask", mask=mask)
        return self._add(f"masked-{position}", "SetLatentNoiseMask", samples=latent, mask=mask)

    def _load(self, node: str, name: str) -> Link:
        return self._add(node, "LoadImage", image=name)


_Link: TypeAlias = list[Any]


@dataclass(frozen=True, slots=True)
class _Stage:
    """A pass with the links to its models."""

    pass_: Pass
    prefix: str
    model: _Link
    sampled_model: _Link
    """The model that the sampler of the pass gets."""
    clip: _Link
    vae: _Link
    refiner: _Stage | None = None
    """The models of the refiner, which the last steps use."""


class Writer:
    """Writes the nodes of one request. The node ids of the second pass begin with `hires-`."""

    def __init__(self, parameters: DiffusionParameters) -> None:
        self.nodes: dict[str, Any] = {}
        self._parameters = parameters
        self._is_webui = parameters.compatibility == "webui"

    def write(self, passes: Sequence[Pass], upscaler: Upscaler | None) -> None:
        last = first = self._stage(passes[0], "")
        if upscaler is not None:
            last = self._stage(passes[1], "hires-", first)
            if upscaler.by == "model":
                self._add("upscaler", "UpscaleModelLoader", model_name=upscaler.name)
        start, finished = self._starts(first)
        for index in range(self._parameters.images):
            latent = self._sample(first, index, latent=start(index))
            if upscaler is not None:
                larger = self._enlarge(latent, index, upscaler, stages=(first, last))
                latent = self._sample(last, index, latent=larger)
            vae = (last.refiner or last).vae
            image = self._add(f"decode-{index}", "VAEDecode", samples=latent, vae=vae)
            image = finished(image, index)
            self._add(f"save-{index}", "SaveImage", images=image, filename_prefix="darkroom")

    def _starts(
        self, stage: _Stage
    ) -> tuple[Callable[[int], _Link], Callable[[_Link, int], _Link]]:
        """Return two functions, one for the start of an image and one for its completion.

        The first function takes the index of an image, and returns the latent to start from. The
        second function takes the decoded image. Without initial images, all images start from one
        empty latent and need no completion.
        """
        if stage.pass_.is_from_images:
            starts = InitialImages(
                self._parameters,
                stage.pass_,
                self._add,
                model=stage.sampled_model,
                vae=stage.vae,
            )
            return starts.latent, starts.finished
        size = {"width": stage.pass_.width, "height": stage.pass_.height}
        empty = self._add("latent", "EmptyLatentImage", **size, batch_size=1)
        return lambda _index: empty, lambda image, _index: image

    def _stage(self, pass_: Pass, prefix: str, earlier: _Stage | None = None) -> _Stage:
        """Add the models and texts of a pass. Models that `earlier` has loaded are shared."""
        if earlier and (earlier.pass_.checkpoint, earlier.pass_.loras) == (
            pass_.checkpoint,
            pass_.loras,
        ):
            stage = replace(earlier, pass_=pass_, prefix=prefix, sampled_model=earlier.model)
        else:
            stage = self._models(pass_, prefix)
        if self._is_webui and pass_.sampler == "lcm":
            stage = replace(stage, sampled_model=self._consistent(stage))
        self._text(stage, stage)
        if pass_.refiner is not None:
            other = replace(pass_, checkpoint=pass_.refiner, loras=pass_.refiner_loras)
            refiner = self._models(other, f"{prefix}refiner-")
            self._text(refiner, stage)
            stage = replace(stage, refiner=refiner)
        return stage

    def _text(self, stage: _Stage, sampled: _Stage) -> None:
        """Add the texts of a stage, with the schedule of the stage `sampled`."""
        pass_, options = stage.pass_, dict[str, Any]()
        if self._is_webui:
            options = {
                "pads_texts": True,
                "zeroes_empty_negative": True,
                "makes_plain": True,
                "emphasis": self._parameters.override_settings.emphasis,
            }
        if scale := self._parameters.distilled_cfg_scale:
            options["guidance"] = scale
        self._add(
            f"{stage.prefix}text",
            "WebUITextEncode",
            clip=stage.clip,
            model=sampled.sampled_model,
            text=pass_.prompt,
            negative_text=pass_.negative_prompt,
            steps_before=pass_.steps_before,
            **_schedule(pass_),
            **taken_steps_input(pass_),
            **options,
        )

    def _consistent(self, stage: _Stage) -> _Link:
        """Add the model with the 50 noise levels of consistency models, for the WebUI's LCM."""
        return self._add(
            f"{stage.prefix}lcm",
            "ModelSamplingDiscrete",
            model=stage.model,
            sampling="lcm",
            zsnr=False,
        )

    def _models(self, pass_: Pass, prefix: str) -> _Stage:
        source = f"{prefix}checkpoint"
        self._add(source, "CheckpointLoaderSimple", ckpt_name=pass_.checkpoint)
        model, clip, vae = [source, 0], [source, 1], [source, 2]
        for position, lora in enumerate(pass_.loras):
            loaded = f"{prefix}lora-{position}"
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
        if self._parameters.tiling:
            seamless = f"{prefix}tiling"
            self._add(seamless, "WebUITiling", model=model, vae=vae)
            model, vae = [seamless, 0], [seamless, 1]
        return _Stage(pass_, prefix, model=model, sampled_model=model, clip=clip, vae=vae)

    def _sample(self, stage: _Stage, index: int, *, latent: _Link) -> _Link:
        text = f"{stage.prefix}text"
        options = self._sampler_options(stage, index)
        return self._add(
            f"{stage.prefix}sample-{index}",
            "WebUISampler" if options else "KSampler",
            model=stage.sampled_model,
            positive=[text, 0],
            negative=[text, 1],
            latent_image=latent,
            seed=self._parameters.seed_of(index),
            cfg=self._parameters.cfg_scale,
            **_schedule(stage.pass_),
            **options,
        )

    def _sampler_options(self, stage: _Stage, index: int) -> dict[str, Any]:
        """Return the inputs that only `WebUISampler` has. Without them, a `KSampler` is enough."""
        settings = self._parameters.override_settings
        delta, sampler = settings.eta_noise_seed_delta, SAMPLER_OF[stage.pass_.sampler]
        if not self._is_webui:
            draws = delta and sampler.noise == "independent"
            return {"eta_noise_seed_delta": delta} if draws else {}
        is_first = not stage.pass_.steps_before and not stage.pass_.is_from_images
        has_unit_variance = is_first and (
            settings.sgm_noise_multiplier or follows_timesteps(sampler)
        )
        return {
            "eta_noise_seed_delta": delta,
            "continues_noise": True,
            "randn_source": settings.randn_source or "GPU",
            "noise_scale": "unit variance" if has_unit_variance else "sigma",
            "rounds_timesteps": settings.enable_quantization or sampler.name == "lcm",
            **self._requested_options(sampler),
            **start_options(self._parameters, stage.pass_),
            **self._variation(index),
            **self._refiner(stage),
        }

    def _requested_options(self, sampler: Sampler) -> dict[str, Any]:
        """Return the requested settings that have an effect on this sampler."""
        asked = self._parameters
        options = noise_options(sampler)
        found: dict[str, Any] = {}
        if sampler.eta is not None and asked.eta is not None:
            found["eta"] = asked.eta
        if asked.s_churn > 0 or not sampler.churns:
            found |= {name: getattr(asked, name) for name in options}
        if found.get("s_noise") == 1.0:
            del found["s_noise"]
        if asked.s_min_uncond:
            found["s_min_uncond"] = asked.s_min_uncond
        return found

    def _variation(self, index: int) -> dict[str, Any]:
        """Return the inputs that change the noise at the start of an image."""
        asked = self._parameters
        found: dict[str, Any] = {}
        if asked.varies:
            found["subseed"] = asked.subseed_of(index)
            found["subseed_strength"] = asked.subseed_strength
        if asked.noise_size:
            found["seed_resize_from_w"], found["seed_resize_from_h"] = asked.noise_size
        return found

    def _refiner(self, stage: _Stage) -> dict[str, Any]:
        if stage.refiner is None:
            return {}
        text = f"{stage.refiner.prefix}text"
        return {
            "refiner_model": stage.refiner.model,
            "refiner_positive": [text, 0],
            "refiner_negative": [text, 1],
            "refiner_switch_at": self._parameters.refiner_switch_at,
        }

    def _enlarge(
        self, latent: _Link, index: int, upscaler: Upscaler, *, stages: tuple[_Stage, _Stage]
    ) -> _Link:
        first, second = stages
        pass_ = second.pass_
        width, height = pass_.uncropped or (pass_.width, pass_.height)
        size = {"width": width, "height": height}
        larger = self._larger(latent, index, upscaler, stages=(first, second), size=size)
        if pass_.uncropped is None:
            return larger
        target = {"width": pass_.width, "height": pass_.height}
        return self._add(f"cropped-{index}", "WebUILatentCrop", samples=larger, **target)

    def _larger(
        self,
        latent: _Link,
        index: int,
        upscaler: Upscaler,
        *,
        stages: tuple[_Stage, _Stage],
        size: Mapping[str, int],
    ) -> _Link:
        first, second = stages
        crops = self._parameters.hr_resize_x and self._parameters.hr_resize_y
        crop = "center" if crops and not self._is_webui else "disabled"
        name, method = f"larger-{index}", upscaler.name
        if upscaler.by == "latent":
            return self._add(
                name, "WebUILatentUpscale", samples=latent, upscale_method=method, crop=crop, **size
            )
        image = self._add(f"small-{index}", "VAEDecode", samples=latent, vae=first.vae)
        if upscaler.by == "model":
            image = self._add(
                f"upscaled-{index}",
                "WebUIImageUpscale" if self._is_webui else "ImageUpscaleWithModel",
                upscale_model=["upscaler", 0],
                image=image,
                **(size if self._is_webui else {}),
            )
            method = "lanczos"
        larger = self._add(
            name, "ImageScale", image=image, upscale_method=method, crop=crop, **size
        )
        return self._add(f"encode-{index}", "VAEEncode", pixels=larger, vae=second.vae)

    def _add(self, name: str, class_type: str, **inputs: Any) -> _Link:
        self.nodes[name] = {"class_type": class_type, "inputs": inputs}
        return [name, 0]


def _schedule(pass_: Pass) -> dict[str, Any]:
    return {
        "steps": pass_.steps,
        "sampler_name": pass_.sampler,
        "scheduler": pass_.scheduler,
        "denoise": pass_.denoise,
    }


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled request. `first_index` has the index of the image for each output node."""

    prompt: dict[str, Any]
    first_index: dict[str, int]
    seeds: tuple[int, ...]
    passes: tuple[Pass, ...]
    """The first pass and, with the hires fix, the second pass."""

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(note for each in self.passes for note in each.notes))


def compile_parameters(
    parameters: DiffusionParameters,
    models: Models,
    limits: Limits,
    *,
    default_checkpoint: str | None,
) -> Compiled:
    """Compile a request to a graph in which each image has its own sampler node.

    Raises ParametersInvalid if a model is unknown, a text prompt cannot be parsed or a limit is
    exceeded. The caller must replace a negative seed first, see `with_seed`.
    """
    if parameters.seed < 0:
        raise ValueError("draw the seed first: see with_seed")
    if parameters.styles:
        raise ValueError("apply the styles first")
    if parameters.compatibility == "comfyui":
        _require_neutral(parameters)
    _require_startable(parameters)
    passes = [first_pass(parameters, models, default_checkpoint)]
    upscaler = None
    if parameters.enable_hr:
        passes.append(second_pass(parameters, passes[0], models))
        upscaler = _upscaler(parameters, models)
    passes[-1] = with_refiner(passes[-1], parameters, models)
    if parameters.compatibility == "comfyui":
        _require_neutral_eta(parameters.eta, passes)
        _require_source_of_comfyui(parameters.override_settings.randn_source, passes)
    _require_limits(parameters, passes, limits)
    seeds = tuple(map(parameters.seed_of, range(parameters.images)))
    writer = Writer(parameters)
    writer.write(passes, upscaler)
    first_index = {f"save-{index}": index for index in range(parameters.images)}
    return Compiled(writer.nodes, first_index, seeds, tuple(passes))


def _upscaler(parameters: DiffusionParameters, models: Models) -> Upscaler:
    asked = parameters.hr_upscaler or "Latent"
    found = upscaler_named(asked, models)
    if found is None:
        listed = models.names(UPSCALE_MODELS)
        message = f"is not known; there are: {', '.join((*UPSCALERS, *listed[:20]))}"
        raise ParametersInvalid((FieldError("value_not_in_list", message, "hr_upscaler"),))
    return found


def _require_neutral_eta(eta: float | None, passes: Sequence[Pass]) -> None:
    """Raise ParametersInvalid if `eta` is not the fixed eta of the samplers.

    The fixed eta is 0 for DDIM and 1 for samplers that add noise. Other samplers ignore eta, so 0
    and 1 are accepted.
    """
    for sampler in {each.sampler for each in passes}:
        neutral = {0.0} if sampler == "ddim" else {0.0, 1.0}
        if names.SAMPLER_OF[sampler].noise != "none":
            neutral = {1.0}
        if eta is not None and eta not in neutral:
            taken = " or ".join(f"{each:g}" for each in sorted(neutral))
            message = f"is supported as {taken} only with {sampler}"
            raise ParametersInvalid((FieldError("value_error", message, "eta"),))


def _require_source_of_comfyui(source: RandnSource | None, passes: Sequence[Pass]) -> None:
    """Raise ParametersInvalid if ComfyUI draws noise from another source than the requested one.

    It draws on the CPU, except the noise and the paths of some samplers, which it draws on the
    device. `GPU`, the default of the WebUI, requests nothing.
    """
    used = [names.SAMPLER_OF[each.sampler] for each in passes]
    on_device = [e.name for e in used if e.noise == "independent" or e.draws_path_on_device]
    if source in (None, "GPU") or (source == "CPU" and not on_device):
        return
    where = f"the noise of {on_device[0]} is drawn on the device" if on_device else "on the CPU"
    message = (
        f"must not be {source} if `compatibility` is comfyui: noise is then drawn as in ComfyUI, "
        f"{where}. Omit it, or set `compatibility` to webui"
    )
    raise ParametersInvalid((FieldError("value_error", message, "override_settings.randn_source"),))


def _require_neutral(parameters: DiffusionParameters) -> None:
    """Raise ParametersInvalid if the request uses a member that only the WebUI has."""
    message = "is only supported in the compatibility of the WebUI: see `compatibility`"
    found = parameters.members_of_webui()
    if errors := tuple(FieldError("value_error", message, name) for name in found):
        raise ParametersInvalid(errors)


def _require_startable(parameters: DiffusionParameters) -> None:
    """Raise ParametersInvalid if the members about initial images contradict each other."""
    given, batch = len(parameters.init_images), parameters.batch_size
    is_masked = parameters.mask is not None
    for field, message, is_wrong in (
        ("mask", "needs init_images, but there are none", is_masked and not given),
        (
            "init_images",
            f"has {given} images, one for each image of a batch, but batch_size is {batch}",
            given > max(1, batch),
        ),
        ("enable_hr", "is only supported without init_images", given and parameters.enable_hr),
        (
            "resize_mode",
            "3 is supported with a mask only if inpaint_full_res is true",
            is_masked and parameters.resizing == "latent upscale" and not parameters.is_only_masked,
        ),
    ):
        if is_wrong:
            raise ParametersInvalid((FieldError("value_error", message, field),))


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
        FieldError("out_of_range", f"must be {least} to {most}, but is {value} in all", name)
        for name, (value, least, most) in ranges.items()
        if not least <= value <= most
    ]
    pixels = sum(each.width * each.height for each in passes) * parameters.images
    if pixels > limits.max_pixels:
        message = (
            f"width x height x images is {pixels}, but at most {limits.max_pixels} pixels are "
            "allowed"
        )
        errors.append(FieldError("too_many_pixels", message, "width"))
    if errors:
        raise ParametersInvalid(tuple(errors))
