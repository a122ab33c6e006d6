"""Which conditions ControlNets apply to."""

from __future__ import annotations

from dataclasses import replace

from engine.diffusion.conditioning.condition import Area
from engine.diffusion.conditioning.controls import controlled, with_shared_controls
from engine.diffusion.control.control_net import Control
from tests.support.engine.control_nets import picture, text


def test_shared_controls_take_turns_and_leave_areas_and_own_ones_alone() -> None:
    one, two, own = (
        Control(None, picture(0), 1.0, applies_to_uncond=each) for each in (True, True, False)
    )
    area = (replace(text(1)[0], area=Area(1, 1, 0, 0)),)
    positive = controlled(text(1), one) + controlled(text(1), two) + controlled(area, one)
    negative = area + text(2) + text(3)
    assert [each.controls for each in with_shared_controls(positive, negative)] == [
        (),
        (one,),
        (two,),
    ]
    taken = controlled(text(2), own)
    assert with_shared_controls(positive, taken) is taken
    assert with_shared_controls(positive, area) is area
    assert with_shared_controls(controlled(text(1), own), text(2))[0].controls == ()
