"""Writes the nodes of a diffusion request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from engine.graph.names import Sampler
from engine.webui.img2img.writing import Starts, start_options, taken
from engine.webui.parameters import DiffusionParameters
from engine.webui.passes import Pass
from engine.webui.sampler_names import SAMPLER_OF, follows_timesteps
from engine.webui.upscalers import Upscaler

_Link: TypeAlias = list[Any]


@dataclass(frozen=True, slots=True)
class _Stage:
    """A pass with the links to its models."""

    pass_: Pass
    prefix: str
    model: _Link
    sampled_model: _Link
    """The model as the sampler of the pass wants it."""
    clip: _Link
    vae: _Link
    refiner: _Stage | None = None
    """The models that take over near the end."""


class Writer:
    """Writes the nodes of one request. The node ids of the second pass begin with `hires-`."""

    def __init__(self, parameters: DiffusionParameters) -> None:
        self.nodes: dict[str, Any] = {}
        self._parameters = parameters
        self._is_webui = parameters.compatibility == "webui"

    def write(
        self, passes: Sequence[Pass], upscaler: Upscaler | None, images: Sequence[int]
    ) -> None:
        """Write all nodes. `images`: the indices of those that are to be made."""
        last = first = self._stage(passes[0], "")
        if upscaler is not None:
            last = self._stage(passes[1], "hires-", first)
            if upscaler.by == "model":
                self._add("upscaler", "UpscaleModelLoader", model_name=upscaler.name)
        start, finished = self._starts(first)
        for index in images:
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
        """What gives the latent that an image starts from, and what makes the decoded image whole.

        Without images to start from it is an empty latent for all, and nothing is to be done.
        """
        if stage.pass_.is_from_images:
            starts = Starts(
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
        """Add the texts of a stage, along the schedule of the model that is sampled."""
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
            **taken(pass_),
            **options,
        )

    def _consistent(self, stage: _Stage) -> _Link:
        """Add the model on the 50 levels of consistency models, which the WebUI's LCM takes."""
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
        """The inputs that `WebUISampler` has beyond those of `KSampler`."""
        settings = self._parameters.override_settings
        delta, row = settings.eta_noise_seed_delta, SAMPLER_OF[stage.pass_.sampler]
        if not self._is_webui:
            draws = delta and row.noise == "independent"
            return {"eta_noise_seed_delta": delta} if draws else {}
        is_first = not stage.pass_.steps_before and not stage.pass_.is_from_images
        has_unit_variance = is_first and (settings.sgm_noise_multiplier or follows_timesteps(row))
        return {
            "eta_noise_seed_delta": delta,
            "continues_noise": True,
            "noise_scale": "unit variance" if has_unit_variance else "sigma",
            "rounds_timesteps": settings.enable_quantization or row.name == "lcm",
            **self._wishes(row),
            **start_options(self._parameters, stage.pass_),
            **self._variation(index),
            **self._refiner(stage),
        }

    def _wishes(self, row: Sampler) -> dict[str, Any]:
        """The inputs for what is asked of a sampler, as far as it has an effect there."""
        asked = self._parameters
        has_noise = row.noise != "none" and not follows_timesteps(row)
        is_churned = row.churns and asked.s_churn > 0
        found: dict[str, Any] = {}
        if row.eta is not None and asked.eta is not None:
            found["eta"] = asked.eta
        if asked.s_noise != 1.0 and (has_noise or is_churned):
            found["s_noise"] = asked.s_noise
        if is_churned:
            found |= {name: getattr(asked, name) for name in ("s_churn", "s_tmin", "s_tmax")}
        if asked.s_min_uncond:
            found["s_min_uncond"] = asked.s_min_uncond
        return found

    def _variation(self, index: int) -> dict[str, Any]:
        """The inputs for what the noise of an image's start is varied by."""
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
        """Add the nodes that enlarge a latent for the second pass. Returns the larger latent."""
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
