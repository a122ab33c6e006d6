"""The upscalers of the hires fix, by their names in the WebUI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from engine.graph.models_folder import UPSCALE_MODELS
from engine.webui.model_names import Models, model_name

UpscaleBy: TypeAlias = Literal["latent", "pixels", "model"]


@dataclass(frozen=True, slots=True)
class Upscaler:
    """A method to enlarge images. `name` is an interpolation or the listed name of a model."""

    by: UpscaleBy
    name: str


UPSCALERS = {
    "Latent": Upscaler("latent", "bilinear"),
    "Latent (antialiased)": Upscaler("latent", "bilinear antialiased"),
    "Latent (bicubic)": Upscaler("latent", "bicubic"),
    "Latent (bicubic antialiased)": Upscaler("latent", "bicubic antialiased"),
    "Latent (nearest)": Upscaler("latent", "nearest"),
    "Latent (nearest-exact)": Upscaler("latent", "nearest-exact"),
    "None": Upscaler("pixels", "lanczos"),
    "Lanczos": Upscaler("pixels", "lanczos"),
    "Nearest": Upscaler("pixels", "nearest-exact"),
}
_UPSCALE_MODELS = {
    "r-esrgan 4x+": "RealESRGAN_x4plus",
    "r-esrgan 4x+ anime6b": "RealESRGAN_x4plus_anime_6B",
    "r-esrgan 2x+": "RealESRGAN_x2plus",
    "r-esrgan general 4xv3": "realesr-general-x4v3",
    "r-esrgan animevideo": "realesr-animevideov3",
}
"""The files of upscale models by their names in the WebUI."""
_BY_KEY = {name.casefold(): upscaler for name, upscaler in UPSCALERS.items()}


def upscaler_named(asked: str, models: Models) -> Upscaler | None:
    """Return the upscaler of that name, or None. The name may be the name of a model."""
    if known := _BY_KEY.get(asked.casefold()):
        return known
    named = _UPSCALE_MODELS.get(asked.casefold(), asked)
    try:
        return Upscaler("model", model_name(models, UPSCALE_MODELS, named))
    except ValueError:
        return None
