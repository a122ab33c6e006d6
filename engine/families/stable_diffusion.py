"""Stable Diffusion 1 and 2.

The map of previews is a least-squares fit of what the VAE of both decodes: keturn, "Decoding
latents to RGB without upscaling",
https://discuss.huggingface.co/t/decoding-latents-to-rgb-without-upscaling/23204.
"""

from __future__ import annotations

from engine.families.family import Family, Preview, Traits

_PREVIEW = Preview(
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
    place="stable_diffusion:SD1",
    text_encoders=("cond_stage_model.transformer.",),
    lora_text_width=768,
    side=512,
    preview=_PREVIEW,
)
SD2 = Traits(
    family=Family.SD2,
    title="Stable Diffusion 2",
    place="stable_diffusion:SD2",
    text_encoders=("cond_stage_model.model.",),
    lora_text_width=1024,
    side=512,
    preview=_PREVIEW,
)
