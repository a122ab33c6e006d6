"""The table of families with their traits. A file belongs to the first family that matches it.

The map from latents to preview colours for Stable Diffusion 1 and 2 is a least-squares fit to
decoded images: https://discuss.huggingface.co/t/decoding-latents-to-rgb-without-upscaling/23204.
The map for Stable Diffusion XL is from
https://huggingface.co/blog/TimothyAlexisVass/explaining-the-sdxl-latent-space. The defaults are
those of Z-Image-Turbo and Flux.1 dev.
"""

from __future__ import annotations

from engine.errors import CheckpointUnavailable
from engine.families.family import Defaults, EncoderKind, Family, Preview, Traits, Work
from engine.graph.safetensors_header import Header

_SD_PREVIEW = Preview(
    (
        (38.0, 26.4, 26.5),
        (23.8, 36.5, 22.1),
        (-20.1, 24.1, 33.7),
        (-23.5, -34.6, -60.3),
    ),
    (127.5, 127.5, 127.5),
)
SD1 = Traits(
    family=Family.SD1,
    title="Stable Diffusion 1",
    implementation="stable_diffusion:SD1",
    encoders=frozenset({EncoderKind.CLIP_L}),
    text_encoders=("cond_stage_model.transformer.",),
    lora_text_width=768,
    side=512,
    preview=_SD_PREVIEW,
)
SD2 = Traits(
    family=Family.SD2,
    title="Stable Diffusion 2",
    implementation="stable_diffusion:SD2",
    encoders=frozenset({EncoderKind.CLIP_H}),
    text_encoders=("cond_stage_model.model.",),
    lora_text_width=1024,
    side=512,
    preview=_SD_PREVIEW,
)


_SDXL_PREVIEW = Preview(
    (
        (60.0, 60.0, 60.0),
        (-60.0, -5.0, 10.0),
        (25.0, 15.0, -5.0),
        (-70.0, -50.0, -35.0),
    ),
    (150.0, 140.0, 130.0),
)
SDXL = Traits(
    family=Family.SDXL,
    title="Stable Diffusion XL",
    implementation="stable_diffusion:SDXL",
    encoders=frozenset({EncoderKind.CLIP_L, EncoderKind.CLIP_G}),
    text_encoders=("conditioner.embedders.0.transformer.", "conditioner.embedders.1.model."),
    pipeline="XL",
    lora_text_width=2048,
    side=1024,
    aligned_steps="SDXL",
    preview=_SDXL_PREVIEW,
)
SDXL_REFINER = Traits(
    family=Family.SDXL_REFINER,
    title="the refiner of Stable Diffusion XL",
    implementation="stable_diffusion:Refiner",
    encoders=frozenset({EncoderKind.CLIP_G}),
    text_encoders=("conditioner.embedders.0.model.",),
    lora_text_width=1280,
    side=1024,
    aligned_steps="SDXL",
    preview=_SDXL_PREVIEW,
)


_Z_IMAGE_SIGN = "cap_pad_token"


def _is_z_image(header: Header, prefix: str) -> bool:
    return f"{prefix}{_Z_IMAGE_SIGN}" in header.shapes


Z_IMAGE = Traits(
    family=Family.Z_IMAGE,
    title="Z-Image",
    implementation="z_image:ZImage",
    encoders=frozenset({EncoderKind.QWEN3}),
    text_encoders=("text_encoders.",),
    is_network=_is_z_image,
    pipeline="ZImage",
    latent_channels=16,
    text_width=2560,
    work=Work(call=8.0, text=6.0, load=2.0, text_load=1.5),
    side=1024,
    defaults=Defaults(steps=8, cfg_scale=1.0, sampler_name="RES Multistep", scheduler="Simple"),
)


_FLUX_SIGNS = ("double_blocks.0.img_attn.qkv.weight", "single_transformer_blocks.0.proj_mlp.weight")
_OTHER_FLUX_SIGNS = ("double_stream_modulation_img.", "distilled_guidance_layer.")
"""Prefixes of names that only the networks of Flux.2 and Chroma have."""
_FLUX_INPUTS = ("img_in.weight", "x_embedder.weight")
_FLUX_INPUT_WIDTHS = {64, 128, 384}
"""The number of values in a patch: 2 x 2 cells of a latent with 16 channels. The models for edges
and depth also have the latent of a picture, and Fill has this latent and a mask.
"""


def _is_flux(header: Header, prefix: str) -> bool:
    if any(header.has(f"{prefix}{each}") for each in _OTHER_FLUX_SIGNS):
        return False
    if not any(f"{prefix}{sign}" in header.shapes for sign in _FLUX_SIGNS):
        return False
    shapes = (header.shapes.get(f"{prefix}{name}", ()) for name in _FLUX_INPUTS)
    shape = next(filter(None, shapes), ())
    if len(shape) == 2 and shape[1] not in _FLUX_INPUT_WIDTHS:
        raise CheckpointUnavailable(
            f"{header.name} is a Flux with patches of {shape[1]} values, which is not supported yet"
        )
    return True


FLUX = Traits(
    family=Family.FLUX,
    title="Flux.1",
    implementation="flux:Flux",
    encoders=frozenset({EncoderKind.CLIP_L, EncoderKind.T5}),
    text_encoders=("text_encoders.",),
    is_network=_is_flux,
    pipeline="Flux",
    latent_channels=16,
    text_width=4096,
    least_tokens=256,
    work=Work(call=10.0, text=8.0, load=4.0, text_load=2.0),
    side=1024,
    defaults=Defaults(steps=20, cfg_scale=1.0, sampler_name="Euler", scheduler="Simple"),
    takes_guidance_input=True,
)


FAMILIES: tuple[Traits, ...] = (SD1, SD2, SDXL, SDXL_REFINER, Z_IMAGE, FLUX)
TRAITS: dict[Family, Traits] = {each.family: each for each in FAMILIES}
