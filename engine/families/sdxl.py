"""Stable Diffusion XL and its refiner.

The map of previews: T. A. Vass, "Explaining the SDXL latent space",
https://huggingface.co/blog/TimothyAlexisVass/explaining-the-sdxl-latent-space.
"""

from __future__ import annotations

from engine.families.family import Family, Preview, Traits

_PREVIEW = Preview(
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
    place="sdxl:SDXL",
    text_encoders=("conditioner.embedders.0.transformer.", "conditioner.embedders.1.model."),
    pipeline="XL",
    lora_text_width=2048,
    side=1024,
    aligned_steps="SDXL",
    preview=_PREVIEW,
)
SDXL_REFINER = Traits(
    family=Family.SDXL_REFINER,
    title="the refiner of Stable Diffusion XL",
    place="sdxl:Refiner",
    text_encoders=("conditioner.embedders.0.model.",),
    lora_text_width=1280,
    side=1024,
    aligned_steps="SDXL",
    preview=_PREVIEW,
)
