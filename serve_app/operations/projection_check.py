"""Checks that the read model follows the log."""

from __future__ import annotations

from collections.abc import Sequence

from events.streams.log_streams import LogPlace, is_beyond
from serve_app.operations.disagreements import Disagreement, Kind
from serve_app.operations.places import Places


class ProjectionCheck:
    """The second look of two sees whether it moves."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._checkpoint: LogPlace | None = None
        """Where it was at the last look."""

    async def check(self, _: Sequence[str]) -> list[Disagreement]:
        checkpoint = await self._places.read_model.checkpoint()
        moved = self._checkpoint is not None and self._checkpoint != checkpoint
        self._checkpoint = checkpoint
        last = await self._places.log.last_sequence()
        if is_beyond(checkpoint, last):
            text = f"The read model is at position {checkpoint}, the log ends at {last}."
            return [Disagreement(Kind.PROJECTION_AHEAD, text)]
        if moved or not await self._places.log.following(checkpoint):
            return []
        text = f"The read model stands at position {checkpoint}, the log goes on to {last}."
        return [Disagreement(Kind.PROJECTION_STOPPED, text)]
