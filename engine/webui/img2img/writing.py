"""Writes the nodes between the uploads of a request and its sampler, and behind the decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from engine.webui.parameters import DiffusionParameters
from engine.webui.passes import Pass

Link: TypeAlias = list[Any]
Add: TypeAlias = Callable[..., Link]
"""Adds the node of an id and a class with inputs, and returns the link to its first output."""


def taken(pass_: Pass) -> dict[str, Any]:
    """The input that says how many steps of its schedule a pass takes."""
    return {"taken_steps": pass_.taken_steps} if pass_.taken_steps else {}


def start_options(parameters: DiffusionParameters, pass_: Pass) -> dict[str, Any]:
    """The inputs of the WebUI's sampler for a pass that starts from images; none for others."""
    found = taken(pass_)
    if pass_.is_from_images and parameters.noise_multiplier != 1.0:
        found["noise_multiplier"] = parameters.noise_multiplier
    if pass_.is_from_images and parameters.mask is not None:
        found["renews_kept"] = False
    return found


class Starts:
    """The starts of the images of one request. What several images share is written once."""

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
        """The latent that an image starts from."""
        asked = self._parameters
        place = index % asked.batch
        own_noise = asked.mask is not None and asked.masked_content == "latent noise"
        shared = place if own_noise or len(asked.init_images) > 1 else 0
        if shared not in self._latents:
            make = self._webui if asked.compatibility == "webui" else self._comfyui
            self._latents[shared] = make(shared, place % len(asked.init_images))
        return self._latents[shared]

    def finished(self, image: Link, index: int) -> Link:
        """What was made for an image, put into what the mask keeps of its start."""
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

    def _webui(self, place: int, source: int) -> Link:
        asked = self._parameters
        pixels, mask = self._pixels(source)
        if mask is not None and asked.masked_content != "original":
            pixels = self._add(f"filled-{place}", "WebUIFill", image=pixels, mask=mask)
        latent = self._add(f"encode-{place}", "VAEEncode", pixels=pixels, vae=self._vae)
        if asked.resizing == "latent upscale":
            latent = self._add(
                f"stretched-{place}",
                "WebUILatentUpscale",
                samples=latent,
                upscale_method="bilinear",
                crop="disabled",
                **self._size,
            )
        if mask is None:
            return latent
        return self._add(
            f"masked-{place}",
            "WebUILatentMask",
            model=self._model,
            samples=latent,
            mask=mask,
            content=asked.masked_content,
            seed=asked.seed_of(place),
        )

    def _pixels(self, source: int) -> tuple[Link, Link | None]:
        """The pixels that are encoded, and the mask of them."""
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

    def _comfyui(self, place: int, source: int) -> Link:
        """By the nodes of ComfyUI alone."""
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
        latent = self._add(f"encode-{place}", "VAEEncode", pixels=image, vae=self._vae)
        if mode == "latent upscale":
            latent = self._add(
                f"stretched-{place}",
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
        return self._add(f"masked-{place}", "SetLatentNoiseMask", samples=latent, mask=mask)

    def _load(self, node: str, name: str) -> Link:
        return self._add(node, "LoadImage", image=name)
