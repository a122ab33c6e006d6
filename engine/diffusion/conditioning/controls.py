"""The ControlNets of conditionings: adding one, and sharing them with the negative."""

from __future__ import annotations

from dataclasses import replace

from engine.diffusion.conditioning.condition import Condition, Conditioning
from engine.diffusion.control.control_net import Control


def controlled(conditioning: Conditioning, control: Control) -> Conditioning:
    """The conditioning with one more ControlNet."""
    return tuple(replace(each, controls=(*each.controls, control)) for each in conditioning)


def with_shared_controls(positive: Conditioning, negative: Conditioning) -> Conditioning:
    """The negative with those ControlNets of the positive that apply to both, as in ComfyUI.

    Conditions with an area neither give nor get any. A negative with a ControlNet of its own stays
    as it is.
    """
    places = [place for place, each in enumerate(negative) if _is_whole(each)]
    shared = [
        each.controls
        for each in positive
        if _is_whole(each) and each.controls and each.controls[-1].applies_to_uncond
    ]
    if not places or any(negative[place].controls for place in places):
        return negative
    found = list(negative)
    for number, controls in enumerate(shared):
        place = places[number % len(places)]
        found[place] = replace(negative[place], controls=controls)
    return tuple(found)


def _is_whole(condition: Condition) -> bool:
    return condition.area is None and not condition.set_area_to_bounds
