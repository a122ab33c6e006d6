"""The families, which the rows of the table name."""

from __future__ import annotations

from functools import cache
from pkgutil import resolve_name

from engine.diffusion.families.family import ModelFamily
from engine.diffusion.families.transformer import TransformerFamily
from engine.diffusion.families.unet import UNetFamily
from engine.families.family import Family
from engine.families.table import FAMILIES, TRAITS


@cache
def model_family(family: Family) -> ModelFamily:
    """What a family is on the device; its module is imported at first use."""
    found: ModelFamily = resolve_name(f"{__package__}.{TRAITS[family].place}")()
    return found


def unet_families() -> list[UNetFamily]:
    """Those whose network is a UNet."""
    found = (model_family(each.family) for each in FAMILIES if each.is_network is None)
    return [each for each in found if isinstance(each, UNetFamily)]


def unet_family(family: Family) -> UNetFamily:
    """The family, which is one of UNets."""
    found = model_family(family)
    assert isinstance(found, UNetFamily)
    return found


def transformer_family(family: Family) -> TransformerFamily:
    """The family, which is one of transformers."""
    found = model_family(family)
    assert isinstance(found, TransformerFamily)
    return found
