"""GLIGEN: boxes that say where in a picture the things of a text are.

As in Li et al. 2023 (arXiv:2301.07093), a network makes a token of each box and its text. Every
block of the UNet has a further attention, from the picture to itself and to these tokens, between
its self-attention and its cross-attention.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from diffusers.models.attention import GatedSelfAttentionDense
from diffusers.models.embeddings import GLIGENTextBoundingboxProjection
from torch import Tensor, nn
from torch.nn import functional

from engine.diffusion.host_copies import copied
from engine.diffusion.loading.layers import use_one_dnn
from engine.diffusion.loading.layout import KeyMap, StoredTensor
from engine.diffusion.loading.weights import LoadTarget, Weights
from engine.errors import EngineError
from engine.families.recognition import require_gligen

MOST_BOXES = 30
_POSITION = "position_net."
_FUSER = ".fuser."
_BLOCK = re.compile(r"(input_blocks|middle_block|output_blocks)\.(\d+)\.")
_PARTS = ("input_blocks", "middle_block", "output_blocks")


class _GatedSelfAttention(GatedSelfAttentionDense):
    """The attention to tokens of boxes. Unlike in diffusers, it has the heads of its UNet."""

    alpha_attn: nn.Parameter
    alpha_dense: nn.Parameter

    def forward(self, x: Tensor, tokens: Tensor, heads: int) -> Tensor:  # type: ignore[override]  # one more parameter
        """Return a tensor (batch, n, width), which is also the shape of `x`.

        `tokens` is (batch, m, token width).
        """
        joined = self.norm1(torch.cat([x, self.linear(tokens)], dim=1))
        layer: Any = self.attn
        query, key, value = (
            each.unflatten(-1, (heads, -1)).transpose(1, 2)
            for each in (
                layer.to_q(joined[:, : x.shape[1]]),
                layer.to_k(joined),
                layer.to_v(joined),
            )
        )
        found = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.alpha_attn.tanh() * layer.to_out[0](found.transpose(1, 2).flatten(2))
        gated: Tensor = x + self.alpha_dense.tanh() * self.ff(self.norm2(x))
        return gated


@dataclass(frozen=True, slots=True, eq=False)
class TextBox:
    """A rectangle of a latent, in cells of 8 x 8 pixels, and the text for it."""

    pooled: Tensor
    """(1, width): the pooled vector of the text."""
    height: int
    width: int
    y: int
    x: int


class Gligen(nn.Module):
    """A GLIGEN for texts. `widths` are the widths of the UNet's transformers, in their order."""

    def __init__(self, widths: Sequence[int], *, text_width: int, token_width: int) -> None:
        super().__init__()
        self.position_net = GLIGENTextBoundingboxProjection(text_width, token_width)
        self.fusers = nn.ModuleList(
            _GatedSelfAttention(each, token_width, n_heads=1, d_head=each) for each in widths
        )
        self.widths = tuple(widths)
        self.text_width = text_width
        self.token_width = token_width

    def tokens(self, boxes: Sequence[TextBox], height: int, width: int) -> Tensor:
        """Return the tokens (1, 30, token width) of boxes on a latent of that size in cells.

        Where there is no box, the token is that of the learned null vectors.
        """
        like = self.position_net.null_position_feature
        texts = like.new_zeros(MOST_BOXES, self.text_width)
        rows = torch.zeros(MOST_BOXES, 5)
        for at, box in enumerate(boxes):
            right, bottom = box.x + box.width, box.y + box.height
            corners = (box.x / width, box.y / height, right / width, bottom / height)
            rows[at] = torch.tensor((*corners, 1.0))
            texts[at] = copied(box.pooled[0], like.device)
        rows = copied(rows, like.device).to(like)
        found: Tensor = self.position_net(rows[None, :, :4], rows[None, :, 4], texts[None])
        return found

    def fused(self, number: int, x: Tensor, tokens: Tensor, heads: int) -> Tensor:
        """Return `x` (batch, n, width) after the attention of the UNet's transformer `number`."""
        fuser: Any = self.fusers[number]
        own: torch.dtype = fuser.norm1.weight.dtype
        found: Tensor = fuser(x.to(own), tokens.to(own), heads)
        return found.to(x.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Grounding:
    """A GLIGEN with the boxes of a condition."""

    network: Gligen
    boxes: tuple[TextBox, ...]

    def require_fitting(self, unet: Any) -> None:
        """Raise EngineError if the GLIGEN is for another UNet."""
        blocks = [each.transformer_blocks[0] for each in _transformers(unet)]
        widths = tuple(each.norm1.weight.shape[0] for each in blocks)
        text_width = unet.config.cross_attention_dim
        if (widths, text_width) != (self.network.widths, self.network.token_width):
            raise EngineError(
                "the GLIGEN is for another model: it has attention layers of width "
                f"{_listed(self.network.widths)} for texts of width {self.network.token_width}, "
                f"but this model has {_listed(widths)} and {text_width}"
            )


def _listed(widths: Sequence[int]) -> str:
    return ", ".join(str(each) for each in sorted(set(widths)))


def with_box(grounding: Grounding | None, network: Gligen, box: TextBox) -> Grounding:
    """Return a grounding with one more box. `network` replaces an earlier GLIGEN, as in ComfyUI.

    Raises EngineError for too many boxes, or a text of another model.
    """
    if box.pooled.shape[-1] != network.text_width:
        raise EngineError(
            f"the text of the box was encoded for another model: it has the width "
            f"{box.pooled.shape[-1]}, but the GLIGEN needs {network.text_width}"
        )
    boxes = () if grounding is None else grounding.boxes
    if len(boxes) == MOST_BOXES:
        raise EngineError(f"a conditioning has more than {MOST_BOXES} boxes, the most of GLIGEN")
    return Grounding(network, (*boxes, box))


@contextmanager
def grounded(
    unet: Any, groundings: Sequence[Grounding | None], sizes: Sequence[int], x: Tensor
) -> Iterator[None]:
    """Let the latents `x` of each row attend to the row's boxes within this context.

    `sizes` has the number of latents of each row. Rows without a grounding stay as they are. Each
    GLIGEN is called once for all its rows.
    """
    if not any(groundings):
        yield
        return
    own = _joined(groundings, sizes, x)

    def fuser(hidden: Tensor, _tokens: None, *, number: int, heads: int) -> Tensor:
        for network, rows, tokens in own:
            found = network.fused(number, hidden[rows], tokens, heads)
            hidden = hidden.index_copy(0, rows, found)
        return hidden

    hooks, blocks = [], []
    try:
        for number, transformer in enumerate(_transformers(unet)):
            for block in transformer.transformer_blocks:
                # diffusers calls this attribute where GLIGEN's attention belongs.
                block.fuser = partial(fuser, number=number, heads=block.attn1.heads)
                blocks.append(block)
                hooks.append(block.register_forward_pre_hook(_call_fuser, with_kwargs=True))
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for block in blocks:
            del block.fuser


def _call_fuser(
    _block: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    given = named.get("cross_attention_kwargs") or {}
    return inputs, named | {"cross_attention_kwargs": {**given, "gligen": {"objs": None}}}


def _joined(
    groundings: Sequence[Grounding | None], sizes: Sequence[int], x: Tensor
) -> list[tuple[Gligen, Tensor, Tensor]]:
    """Return each GLIGEN with the indices of its rows and their tokens (rows, 30, width)."""
    uses: defaultdict[Gligen, list[tuple[Tensor, Tensor]]] = defaultdict(list)
    rows = torch.arange(len(x), device=x.device).split(list(sizes))
    for grounding, own in zip(groundings, rows, strict=True):
        if grounding is not None:
            tokens = grounding.network.tokens(grounding.boxes, *x.shape[2:])
            uses[grounding.network].append((own, tokens.expand(len(own), -1, -1)))
    return [
        (network, torch.cat([own for own, _ in each]), torch.cat([tokens for _, tokens in each]))
        for network, each in uses.items()
    ]


def _transformers(unet: Any) -> Iterator[Any]:
    """Yield the transformers of a UNet in the order in which it calls them."""
    for block in (*unet.down_blocks, unet.mid_block, *unet.up_blocks):
        yield from getattr(block, "attentions", ())


def read_gligen(path: Path, device: torch.device) -> Gligen:
    """Read a GLIGEN for texts. Raises CheckpointUnavailable."""
    weights = Weights(path)
    require_gligen(path.name, weights.shapes)
    prefixes = _fuser_prefixes(weights.shapes)
    linears = [weights.shapes[f"{each}linear.weight"] for each in prefixes]
    with torch.device("meta"):
        network = Gligen(
            [shape[0] for shape in linears],
            text_width=weights.shapes[f"{_POSITION}null_positive_feature"][0],
            token_width=linears[0][1],
        )
    target = LoadTarget(device, torch.float16 if device.type == "cuda" else torch.float32)
    weights.load_into(network, _key_map(network.state_dict(), prefixes), target)
    # The sines of large angles are wrong in float16.
    network.position_net.float()
    return use_one_dnn(network)


def _fuser_prefixes(shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return the prefixes of the attention layers in the order in which the UNet calls them."""
    found: dict[tuple[int, int], str] = {}
    for key in shapes:
        place = _BLOCK.search(key)
        if place and key.endswith(f"{_FUSER}linear.weight"):
            at = _PARTS.index(place[1]), int(place[2])
            found[at] = key.removesuffix("linear.weight")
    return [found[at] for at in sorted(found)]


def _key_map(names: Mapping[str, Tensor], prefixes: Sequence[str]) -> KeyMap:
    found = {}
    for name in names:
        if name.startswith(_POSITION):
            found[name] = StoredTensor(name)
        else:
            _, number, rest = name.split(".", 2)
            found[name] = StoredTensor(f"{prefixes[int(number)]}{rest}")
    return found
