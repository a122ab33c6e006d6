"""A job while it is waited for: a bar, how far it is, and what its picture looks like so far."""

from __future__ import annotations

from base64 import b64decode
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from serve_app.cli.remote.half_blocks import half_blocks
from serve_app.cli.remote.streams import ENDS, StreamEvent
from serve_app.cli.terminal import printable

_REFRESHES_PER_S = 8


class JobView:
    """`with JobView(...) as view:` shows it; `note` changes what it shows. Without a terminal it
    is one line, at the end.
    """

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[said]}", markup=False),
            TimeElapsedColumn(),
        )
        self._bars = Progress(*columns, console=console)
        self._bar = self._bars.add_task(title, total=1.0, said="")
        self._picture: RenderableType | None = None
        self._live = Live(
            get_renderable=self._shown, console=console, refresh_per_second=_REFRESHES_PER_S
        )

    def __enter__(self) -> JobView:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._picture = None
        self._live.stop()
        if not self._console.is_interactive:  # where rich leaves its line without an end
            self._console.print()

    def note(self, event: StreamEvent) -> None:
        if event.name == "preview":
            self._picture = self._drawn(event.data.get("jpeg")) or self._picture
        elif event.name == "progress":
            done = float(event.data.get("progress", 0.0))
            self._bars.update(self._bar, completed=done, said=_progressed(event.data))
        elif event.name == "completed":
            self._bars.update(self._bar, completed=1.0, said="")
        elif event.name == "queued":
            self._bars.update(self._bar, said=_placed(event.data))
        elif event.name == "attempt_failed":
            self._picture = None
            self._bars.update(self._bar, completed=0.0, said="to be tried again")
        elif event.name in ENDS:
            self._bars.update(self._bar, said=event.name)
        self._live.refresh()

    def _shown(self) -> RenderableType:
        return Group(self._bars, self._picture) if self._picture is not None else self._bars

    def _drawn(self, jpeg: Any) -> RenderableType | None:
        try:
            return half_blocks(b64decode(str(jpeg), validate=True), self._console)
        except ValueError:
            return None


def _progressed(data: dict[str, Any]) -> str:
    if not data.get("steps"):
        return printable(str(data.get("class_type", "")))
    return printable(f"step {data.get('step')} of {data['steps']}")


def _placed(data: dict[str, Any]) -> str:
    starts = data.get("starts_in_s")
    when = f", begins in about {starts:.0f} s" if isinstance(starts, int | float) else ""
    return printable(f"number {data.get('queue_position')} in line{when}")
