"""The services of the engine that a node's body can use."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.batcher import Work
from engine.diffusion.conditioning.condition import ConcatImage, Conditioning
from engine.diffusion.conditioning.guidance import ThirdConditioning
from engine.diffusion.images import latents
from engine.diffusion.images.input_files import read_images, read_latent, read_mask
from engine.diffusion.images.latent_operations import LatentOperations
from engine.diffusion.images.latents import Images, Latent, Mask
from engine.diffusion.images.operations import ImageOperations
from engine.diffusion.images.upscale_models import UpscaleNetwork, read_upscale_model, upscaled
from engine.diffusion.images.vae import (
    Vae,
    decoded_within_memory,
    encoded_within_memory,
    greyed,
    prepared_for_inpainting,
)
from engine.diffusion.loading.checkpoints import (
    Checkpoint,
    UnusablePart,
    load_checkpoint,
    load_vae,
)
from engine.diffusion.loading.lora import Networks, with_lora
from engine.diffusion.loading.store import Load, ModelStore, Read
from engine.diffusion.model import Model
from engine.diffusion.output_check import require_numbers
from engine.diffusion.previews import RunPreviews, show_estimate
from engine.diffusion.samplers import schedules
from engine.diffusion.samplers.noise_sources import comfyui_sources, offset_on
from engine.diffusion.text import webui_texts
from engine.diffusion.text.encoding import Clip, encode_pair
from engine.diffusion.text.webui_texts import Clips, Parts, TextOptions
from engine.diffusion.trajectory import (
    Guidance,
    NoiseConfig,
    Refiner,
    SamplerSchedule,
    trajectory,
)
from engine.diffusion.vision.operations import VisionOperations
from engine.errors import InputFileUnavailable
from engine.graph.limits import Limits
from engine.graph.models_folder import CHECKPOINTS, LORAS, UPSCALE_MODELS, VAES
from engine.reports import Note, PassedSigmas, SavedLatent
from engine.webui.sampler_names import SAMPLER_OF

T = TypeVar("T")


class Context:
    """Gives the nodes of one run access to models, the device and files.

    `on_steps` is called with the number of sampler steps since its previous call. `limits` apply to
    `images` and `latents`. `vision` uses pictures as prompts instead of texts.
    """

    def __init__(
        self,
        store: ModelStore,
        *,
        on_steps: Callable[[int], None],
        input_files: Mapping[str, bytes],
        limits: Limits,
        step_seed_offset: int = 0,
        previews: RunPreviews | None = None,
        on_note: Callable[[str], None] = lambda _note: None,
    ) -> None:
        self._store = store
        self._on_steps = on_steps
        self._on_note = on_note
        self._previews = previews
        self._input_files = input_files
        self._limits = limits
        self.images = ImageOperations(limits)
        self.latents = LatentOperations(limits)
        self.vision = VisionOperations(store)
        self._step_seed_offset = step_seed_offset

    @property
    def device(self) -> torch.device:
        return self._store.device

    def free_memory(self) -> bool:
        """Free memory after a node's body ran out of memory; see `ModelStore.free_memory`.

        No model is streamed, because bodies use host memory and streaming needs more host memory.
        """
        return self._store.free_memory(may_stream=False)

    def load(self, name: str) -> Work[Checkpoint]:
        store = self._store
        checkpoint: Checkpoint = yield Load(
            (CHECKPOINTS, name), lambda: load_checkpoint(store, name)
        )
        return checkpoint

    def model(self, kind: str, name: str, read: Read[T]) -> Work[T]:
        """Return a model of the folder `kind`. `read` reads the model if it is not in memory."""
        model: T = yield Load((kind, name, read), lambda: self._store.get(kind, name, read))
        return model

    def load_once(self, key: Hashable, make: Callable[[ModelStore], T]) -> Work[T]:
        """Return the result of `make`, which is called once for all runs that wait for `key`."""
        result: T = yield Load(("load_once", key), lambda: make(self._store))
        return result

    def model_names(self, kind: str) -> tuple[str, ...]:
        """Return the sorted names of the models in the folder `kind`."""
        return self._store.models.names(kind)

    def input_file(self, name: str) -> bytes:
        """Return the content of an input file of the job. Raises InputFileUnavailable."""
        try:
            return self._input_files[name]
        except KeyError as error:
            raise InputFileUnavailable(f"There is no input file {name!r}.") from error

    def image_file(self, name: str) -> tuple[Images, Mask]:
        return read_images(self.input_file(name), name, self._limits)

    def mask_file(self, name: str, channel: str) -> Mask:
        return read_mask(self.input_file(name), name, channel=channel, limits=self._limits)

    def latent_file(self, name: str) -> Latent:
        return read_latent(self.input_file(name), name, self._limits)

    def load_vae(self, name: str) -> Work[Vae]:
        vae: Vae = yield Load((VAES, name), lambda: load_vae(self._store, name))
        return vae

    def lora(
        self,
        name: str,
        model: Model,
        clip: Clips | None,
        *,
        model_strength: float,
        clip_strength: float,
    ) -> Work[tuple[Model, Clips | None]]:
        if not model_strength and not clip_strength:
            return model, clip
        if isinstance(cast("object", clip), UnusablePart):
            model, _ = yield from self.lora(
                name, model, None, model_strength=model_strength, clip_strength=0.0
            )
            return model, clip
        encoders = clip.networks if clip is not None else ()
        networks = Networks(model.unet, model.family, encoders, model.adapters)
        changed: Networks = yield Load(
            (LORAS, name, networks.key, model_strength, clip_strength),
            lambda: with_lora(
                self._store,
                name,
                networks,
                unet_strength=model_strength,
                text_strength=clip_strength,
            ),
        )
        if clip is not None:
            clip = clip.with_networks(changed.text_encoders)
        return replace(model, unet=changed.unet, adapters=changed.adapters), clip

    def encode(self, clip: Clips, text: str) -> Work[Conditioning]:
        self._note_left_out(clip.embeddings_left_out(text))
        return clip.encode(text)

    def encode_pair(
        self, clip: Clip, first: str, second: str, *, size_conditioning: Sequence[float]
    ) -> Work[Conditioning]:
        """Return the conditioning of two prompts, one for each text encoder of SDXL."""
        for text in (first, second):
            self._note_left_out(clip.embeddings_left_out(text))
        return encode_pair(clip, first, second, size_conditioning)

    def encode_webui(
        self, clip: Clips, positive: Parts, negative: Parts, *, sigmas: Tensor, options: TextOptions
    ) -> Work[tuple[Conditioning, Conditioning]]:
        """Return the conditionings of two prompts in the WebUI's syntax for a schedule."""
        return webui_texts.encode(
            clip,
            positive,
            negative,
            sigmas=sigmas,
            options=options,
            on_left_out=lambda name: self._note_left_out([name]),
        )

    def _note_left_out(self, embeddings: Iterable[str]) -> None:
        for name in embeddings:
            self._on_note(Note.EMBEDDING_LEFT_OUT.about(name))

    def sigmas(
        self,
        model: Model,
        scheduler: str,
        steps: int,
        denoise: float,
        *,
        sampler: str | None = None,
        taken: int = 0,
    ) -> Tensor:
        """Return the sigmas of a schedule, or of its last `taken` steps if `taken` is not 0."""
        discards = sampler is not None and SAMPLER_OF[sampler].discards_penultimate_sigma
        sigmas = schedules.sigmas_for(
            model.levels, scheduler, steps, denoise, discards_penultimate_sigma=discards
        )
        return sigmas[-(taken + 1) :] if taken else sigmas

    def sample(
        self,
        model: Model,
        latent: Latent,
        *,
        sampler: str,
        sigmas: Tensor,
        steps: int,
        seed: int,
        positive: Conditioning,
        negative: Conditioning,
        cfg: float,
        adds_noise: bool = True,
        third: ThirdConditioning | None = None,
    ) -> Work[tuple[Latent, Latent]]:
        """Sample a latent along `sigmas`. If `adds_noise`, noise of `seed` is added first.

        Returns the latent at the last sigma, and the last estimate of the latent without noise.
        If `third` is None, the third conditioning of the model is used.
        """
        return (
            yield from self.sample_along(
                model,
                latent,
                SamplerSchedule(sampler, sigmas),
                steps=steps,
                guidance=Guidance(positive, negative, cfg, third_conditioning=third),
                noise=NoiseConfig(
                    seed,
                    adds_noise,
                    offset_on(self.device, self._step_seed_offset),
                    comfyui_sources(SAMPLER_OF[sampler]),
                ),
            )
        )

    def sample_along(
        self,
        model: Model,
        latent: Latent,
        schedule: SamplerSchedule,
        *,
        steps: int,
        guidance: Guidance,
        noise: NoiseConfig,
        refiner: Refiner | None = None,
    ) -> Work[tuple[Latent, Latent]]:
        """Like `sample`, but with all settings of the noise and an optional refiner.

        Progress is scaled to `steps`, which may differ from the number of sigmas.
        """
        progress = PassedSigmas(self._on_steps, steps, sigmas=len(schedule.sigmas) - 1)
        found = yield from trajectory(
            model,
            latent,
            schedule,
            guidance=guidance,
            noise_config=noise,
            on_sigmas_passed=progress.pass_sigmas,
            on_estimate=self._on_estimate(model),
            refiner=refiner,
        )
        progress.end()
        require_numbers("The sampler", found[0].samples)
        return found

    def _on_estimate(self, model: Model) -> Callable[[Tensor], None]:
        if self._previews is None:
            return lambda _estimate: None
        return partial(show_estimate, self._previews, model.family.traits, self._store.previews)

    def note_tiled(self) -> None:
        """Add the note to the run that an image was encoded or decoded in tiles."""
        self._on_note(Note.VAE_TILED)

    def decode(self, vae: Vae, latent: Latent) -> Work[Images]:
        """Decode a latent. If memory runs out, decode tile by tile and add a note to the run."""
        images = yield from decoded_within_memory(vae, latent, self.note_tiled)
        require_numbers("The VAE", images)
        return images

    def encode_images(self, vae: Vae, images: Images) -> Work[Latent]:
        """Encode images, cropped to multiples of 8 pixels. Memory is handled as in `decode`."""
        images = images[..., : latents.COLOURS]
        return encoded_within_memory(vae, images, self.note_tiled)

    def encode_for_inpainting(
        self, vae: Vae, images: Images, mask: Mask, *, grow_by: int
    ) -> Work[Latent]:
        """Encode images, grey where the mask is 1. The grown mask is the latent's noise mask."""
        images, mask = prepared_for_inpainting(images, mask, grow_by)
        latent = yield from self.encode_images(vae, images)
        return replace(latent, noise_mask=mask)

    def encode_for_inpainting_model(
        self, vae: Vae, images: Images, mask: Mask
    ) -> Work[tuple[Latent, ConcatImage]]:
        """Encode images whole, and once more grey under the mask, for an inpainting model."""
        hidden, mask = greyed(images, mask)
        concat = yield from self.encode_images(vae, hidden)
        latent = yield from self.encode_images(vae, images)
        return replace(latent, noise_mask=mask), ConcatImage(concat.samples, mask)

    def upscale_model(self, name: str) -> Work[UpscaleNetwork]:
        return self.model(UPSCALE_MODELS, name, read_upscale_model)

    def upscaled(self, network: UpscaleNetwork, images: Images) -> Work[Images]:
        larger = yield from upscaled(network, images, self._limits)
        require_numbers("The upscaler", larger)
        return larger

    def saved(self, latent: Latent) -> SavedLatent:
        require_numbers("The graph", latent.samples)
        return SavedLatent(latent.samples.float().cpu().numpy())

    def pixels(self, images: Images) -> list[NDArray[np.uint8]]:
        """Return each image as an array (height, width, 3 or 4) of values 0..255."""
        require_numbers("The graph", images)
        return latents.to_pixels(images)
