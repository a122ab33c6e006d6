"""Flux.1 Redux: a style model makes tokens of a picture, which are appended to those of a text.

The network is the one of ReduxImageEncoder in diffusers. Its input is the states of SigLIP.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeAlias

import torch
from diffusers.pipelines.flux.modeling_flux import ReduxImageEncoder
from torch import Tensor

from engine.batcher import Request
from engine.diffusion.conditioning.condition import AttentionBias, Condition, Conditioning
from engine.diffusion.device_error import memory_checked
from engine.diffusion.loading.layout import identity_map
from engine.diffusion.loading.networks import configuration_checked
from engine.diffusion.loading.weights import LoadTarget, Weights
from engine.diffusion.vision.clip_vision import ClipVisionOutput
from engine.errors import EngineError
from engine.families.recognition import require_style_model
from engine.graph.safetensors_header import read_header

StyleModel: TypeAlias = ReduxImageEncoder


def read_style_model(path: Path, device: torch.device) -> StyleModel:
    """Read a Redux. Raises CheckpointUnavailable for other files."""
    require_style_model(read_header(path))
    weights = Weights(path)
    with configuration_checked(path.name), torch.device("meta"):
        sizes = [weights.shapes[name] for name in ("redux_up.weight", "redux_down.weight")]
        empty: Any = ReduxImageEncoder(redux_dim=sizes[0][1], txt_in_features=sizes[1][0])
    found: StyleModel = weights.load_into(
        empty, identity_map(empty.state_dict()), LoadTarget(device, torch.float32)
    )
    return found


@dataclass(slots=True, eq=False)
class EncodeStyle(Request):
    """Makes tokens (1, tokens, width) of the states of all pictures of one vision output."""

    network: StyleModel
    seen: ClipVisionOutput
    rows: int = 1

    def __post_init__(self) -> None:
        config: Any = self.network.config
        own, width = config.redux_dim, self.seen.last_hidden_states.shape[-1]
        if own != width:
            raise EngineError(
                f"the picture was encoded by another vision model: its states have the width "
                f"{width}, but this style model needs {own}; use SigLIP So400m"
            )

    @property
    def key(self) -> Hashable:
        return "style", id(self.network)

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[Tensor]:
        network = requests[0].network
        with memory_checked():
            device = network.redux_up.weight.device
            states = [each.seen.last_hidden_states.to(device) for each in requests]
            found = [network(each).image_embeds.cpu() for each in states]
        return [each.flatten(0, 1)[None] for each in found]


def with_style(
    conditioning: Conditioning, tokens: Tensor, strength: float, *, is_bias: bool
) -> Conditioning:
    """Append the tokens (1, n, width) of a picture to each text.

    `strength` multiplies the tokens. If `is_bias`, it multiplies the attention to them instead.
    Raises EngineError if the texts have another width.
    """
    if not is_bias:
        tokens = tokens * strength
    return tuple(_styled(each, tokens, strength if is_bias else 1.0) for each in conditioning)


def _styled(condition: Condition, tokens: Tensor, weight: float) -> Condition:
    own, width = condition.tokens.shape[-1], tokens.shape[-1]
    if own != width:
        raise EngineError(
            f"the style model is for texts of the width {width} (Flux.1), but this text has {own}"
        )
    joined = torch.cat([condition.tokens, tokens.to(condition.tokens)], dim=1)
    biases = condition.attention_biases
    if weight != 1.0:
        # ComfyUI keeps the bias in half precision.
        bias = float(torch.tensor(weight).log().half())
        biases = (*biases, AttentionBias(condition.tokens.shape[1], joined.shape[1], bias))
    return replace(condition, tokens=joined, attention_biases=biases)
