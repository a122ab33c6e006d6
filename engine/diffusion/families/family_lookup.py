"""Finds the class of a family by the name in the table of families."""

from __future__ import annotations

from functools import cache
from pkgutil import resolve_name

from engine.diffusion.families.model_family import ModelFamily
from engine.diffusion.families.stable_diffusion import UNetFamily
from engine.diffusion.families.transformer import TransformerFamily
from engine.families.family import Family
from engine.families.table import FAMILIES, TRAITS


@cache
def model_family(family: Family) -> ModelFamily:
    """Return the implementation of a family. Its module is imported at first use."""
    found: ModelFamily = resolve_name(f"{__package__}.{TRAITS[family].implementation}")()
    return found


def unet_families() -> list[UNetFamily]:
    found = (model_family(each.family) for each in FAMILIES if each.is_network is None)
    return [each for each in found if isinstance(each, UNetFamily)]


def unet_family(family: Family) -> UNetFamily:
    found = model_family(family)
    assert isinstance(found, UNetFamily)
    return found


def transformer_family(family: Family) -> TransformerFamily:
    found = model_family(family)
    assert isinstance(found, TransformerFamily)
    return found
