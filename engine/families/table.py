"""The table of families. A file is of the first one whose signs it has."""

from __future__ import annotations

from engine.families.family import Family, Traits
from engine.families.flux import FLUX
from engine.families.sdxl import SDXL, SDXL_REFINER
from engine.families.stable_diffusion import SD1, SD2
from engine.families.z_image import Z_IMAGE

FAMILIES: tuple[Traits, ...] = (SD1, SD2, SDXL, SDXL_REFINER, Z_IMAGE, FLUX)
TRAITS: dict[Family, Traits] = {each.family: each for each in FAMILIES}
