"""Previews are made beside the sampling, and cost it nothing where they fail or take long."""

from __future__ import annotations

import threading

from engine.diffusion.previews import Previewer, RunPreviews
from tests.support.polling import eventually


def fail() -> bytes:
    raise ValueError("no picture")


async def idle(previewer: Previewer) -> None:
    await eventually(lambda: not previewer.is_busy)


async def test_a_run_has_one_in_each_period() -> None:
    now, made = 10.0, list[bytes]()
    previewer = Previewer(2.0, now=lambda: now)
    previews = RunPreviews(previewer, made.append)
    for second in range(5):
        now = 10.0 + second
        if previews.wants():
            previews.show(lambda second=second: bytes([second]))
            await idle(previewer)
    assert made == [b"\0", b"\2", b"\4"]


async def test_what_comes_while_one_is_made_is_passed_over() -> None:
    made, go = list[bytes](), threading.Event()
    previewer = Previewer(0.0)
    one, other = (RunPreviews(previewer, made.append) for _ in range(2))
    one.show(lambda: b"slow" if go.wait(10) else b"")
    assert not one.wants()
    assert not other.wants()
    go.set()
    await idle(previewer)
    assert other.wants()
    assert made == [b"slow"]


async def test_one_that_fails_is_no_ones_end() -> None:
    made: list[bytes] = []
    previewer = Previewer(0.0)
    previews = RunPreviews(previewer, made.append)
    previews.show(fail)
    await idle(previewer)
    previews.show(lambda: b"next")
    await idle(previewer)
    assert made == [b"next"]
