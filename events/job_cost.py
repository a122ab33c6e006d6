"""What a job costs, as its `Submitted` records it and its caller is told."""

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
