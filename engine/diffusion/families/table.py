"""The families of transformers, one row each."""

from __future__ import annotations

from collections.abc import Mapping

from engine.diffusion.families.flux import Flux
from engine.diffusion.families.transformer import TransformerFamily
from engine.diffusion.families.z_image import ZImage
from engine.graph.families import Family

FAMILIES: Mapping[Family, TransformerFamily] = {
    Family.Z_IMAGE: ZImage(),
    Family.FLUX: Flux(),
}
