"""What a job costs, as its `Submitted` records it and its caller is told, and what it took."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class JobCost(BaseModel):
    """Estimated from the request when the job was accepted."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    work: float = Field(description="Megapixel-steps")
    live_bytes: int = Field(description="Most bytes of values held at once")
    rows: int = Field(description="Most rows of conditioning of one sampler")
    tokens: int = Field(description="Most tokens of one conditioning")
    outputs: int = Field(description="Images and latents that it saves")
    result_bytes: int = Field(default=0, description="Most bytes that their files take")


class Timing(BaseModel):
    """Where the time of the attempt went that completed a job."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    stage_s: dict[str, float]
    """Seconds in each stage: `load`, `text`, `denoise`, `vae`, `upscale`, and `store`, which makes
    files of the results and stores them. Turns of other jobs in between count. Later versions may
    have more stages."""
    rows_per_call: float | None = None
    """Rows in a call of the model, those of other jobs included; None where none was called."""
    steps: int | None = None
    """Of its samplers; None in events of older versions."""
