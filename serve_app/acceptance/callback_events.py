"""The query member `callback_events`: what a caller is called back for."""

from __future__ import annotations

from difflib import get_close_matches

from events.wire.callbacks import CallbackEvent
from serve_app.refusals import CallbackUrlMissing


def checked_callback_events(text: str | None) -> str | None:
    """As it came. Raises ValueError."""
    if text is None:
        return None
    names = text.split(",")
    for name in names:
        if name not in set(CallbackEvent):
            near = get_close_matches(name, list(CallbackEvent), n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(CallbackEvent)}"
            raise ValueError(f"{name[:40]!r} is not told of; {hint}")
    if CallbackEvent.COMPLETED not in names:
        raise ValueError("the end is always told: add completed")
    return text


def events_before_end(text: str | None, callback_url: str | None) -> tuple[str, ...] | None:
    """Those of checked `callback_events`, in one order. Raises CallbackUrlMissing."""
    if text is None:
        return None
    if callback_url is None:
        raise CallbackUrlMissing
    before = (each for each in CallbackEvent if each is not CallbackEvent.COMPLETED)
    return tuple(each.value for each in before if each in text.split(",")) or None
