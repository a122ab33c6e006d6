"""Settings of the WebUI for one job alone."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, ModelWrapValidatorHandler, model_validator

from engine.webui.members import Strict, is_neutral_setting
from engine.webui.values import ClipSkip, Emphasis, Name, OtherVae, Whole


class OverrideSettings(Strict):
    """Settings for this job alone. Those that say what is done anyway are left out."""

    sd_model_checkpoint: Name | None = None
    sd_vae: OtherVae = ""
    CLIP_stop_at_last_layers: ClipSkip | None = None
    eta_noise_seed_delta: Annotated[Whole, Field(ge=0, lt=2**32)] = 0
    sgm_noise_multiplier: bool = False
    enable_quantization: bool = False
    img2img_fix_steps: bool = False
    """img2img takes as many steps as `steps` says, whatever is denoised."""
    emphasis: Emphasis = "Original"

    @model_validator(mode="wrap")
    @classmethod
    def _without_neutral(cls, body: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(body, dict):
            body = {k: v for k, v in body.items() if not is_neutral_setting(k, v)}
        return handler(body)
