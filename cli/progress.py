"""Submits a job, and shows its progress in the terminal until it ends."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from io import BytesIO
from types import TracebackType
from typing import Any
from urllib.parse import unquote

from darkroom_client import Darkroom, Event, Refused
from PIL import Image, ImageOps
from rich.color import Color
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.style import Style
from rich.text import Text

from cli.connection import job_path
from cli.terminal import printable

_WAIT_S = 20.0


class Interrupted(Exception):
    """Ctrl-C was pressed while the command waited for a job."""

    def __init__(self, request_id: str) -> None:
        super().__init__(request_id)
        self.request_id = request_id


def run_job(
    client: Darkroom,
    path: str,
    body: dict[str, Any],
    *,
    console: Console,
    with_previews: bool = True,
    **query: str,
) -> dict[str, Any]:
    """Submit a job by a POST to `path`, show its progress and return its final result.

    With `with_previews`, previews of the image are shown if the terminal has enough colours. Raises
    DarkroomError, Interrupted.
    """
    if with_previews and can_show(console):
        query["preview"] = "true"
    submitted = client.call("POST", path, json=body, query=query)
    request_id = str(submitted["request_id"])
    try:
        with JobView(console, f"{_kind(path)} {request_id}") as view:
            _follow(client, request_id, view)
            ended, waiting = f"{job_path(request_id)}/result", {"wait": _WAIT_S}
            while not (result := client.call("GET", ended, query=waiting))["status"]:
                pass
            return dict(result)
    except KeyboardInterrupt:
        raise Interrupted(request_id) from None


def _kind(path: str) -> str:
    """Return what is submitted: `workflow`, `diffusion`, or the name of a workflow."""
    first, *parts = path.strip("/").split("/")
    return first if first != "v1" else unquote(parts[1])


def _follow(client: Darkroom, request_id: str, view: JobView) -> None:
    """Show the events of the job until it ends. Raises DarkroomError."""
    try:
        for event in client.watch(request_id):
            view.note(event)
    except Refused as error:
        if error.type != "too_many_streams":
            raise  # Without a stream, `run_job` still polls for the result.


_UPPER_HALF = "▀"
_MOST_COLUMNS = 48
_OTHER_ROWS = 6
"""Rows of the terminal for the text around the image."""
_LONGEST_SIDE = 4096
_COLOURFUL = {"256", "truecolor", "windows"}


def can_show(console: Console) -> bool:
    """Return whether the output is a terminal with enough colours for an image."""
    return console.is_terminal and console.color_system in _COLOURFUL


def half_blocks(jpeg: bytes, console: Console) -> Text | None:
    """Return the image as text. Each character shows two pixels, one above the other.

    The text is as large as the terminal allows. Returns None if the data is not a JPEG of an
    acceptable size.
    """
    columns = max(2, min(_MOST_COLUMNS, console.width))
    rows = max(2, min(_MOST_COLUMNS // 2, console.height - _OTHER_ROWS))
    try:
        with Image.open(BytesIO(jpeg), formats=["JPEG"]) as image:
            if max(image.size) > _LONGEST_SIDE:
                return None
            small = ImageOps.contain(image.convert("RGB"), (columns, 2 * rows))
    except (OSError, SyntaxError, ValueError):
        return None
    return _drawn(small)


def _drawn(image: Image.Image) -> Text:
    drawn = Text(no_wrap=True)
    width, height = image.size
    pixels = image.tobytes()

    def colour(x: int, y: int) -> Color | None:
        at = 3 * (y * width + x)
        return Color.from_rgb(*pixels[at : at + 3]) if y < height else None

    for y in range(0, height, 2):
        for x in range(width):
            drawn.append(_UPPER_HALF, Style(color=colour(x, y), bgcolor=colour(x, y + 1)))
        drawn.append("\n")
    return drawn


_REFRESHES_PER_S = 8


class JobView:
    """A progress bar and the latest preview of one job.

    `with JobView(...) as view:` shows both, and `note` updates them. If the output is not a
    terminal, one line is printed at the end.
    """

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[status]}", markup=False),
            TimeElapsedColumn(),
        )
        self._bars = Progress(*columns, console=console)
        self._bar = self._bars.add_task(title, total=1.0, status="")
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
        # Without a terminal, rich writes no line break after the progress bar.
        if not self._console.is_interactive:
            self._console.print()

    def note(self, event: Event) -> None:
        if event.name == "preview":
            self._picture = self._preview(event.data.get("jpeg")) or self._picture
        elif event.name == "progress":
            done = float(event.data.get("progress", 0.0))
            self._bars.update(self._bar, completed=done, status=_progressed(event.data))
        elif event.name == "completed":
            self._bars.update(self._bar, completed=1.0, status="")
        elif event.name == "queued":
            self._bars.update(self._bar, status=_placed(event.data))
        elif event.name == "attempt_failed":
            self._picture = None
            self._bars.update(self._bar, completed=0.0, status="retrying")
        elif event.is_end:
            self._bars.update(self._bar, status=event.name)
        self._live.refresh()

    def _shown(self) -> RenderableType:
        return Group(self._bars, self._picture) if self._picture is not None else self._bars

    def _preview(self, jpeg: Any) -> RenderableType | None:
        try:
            return half_blocks(b64decode(str(jpeg), validate=True), self._console)
        except ValueError:
            return None


def _progressed(data: Mapping[str, Any]) -> str:
    if not data.get("steps"):
        return printable(str(data.get("class_type", "")))
    return printable(f"step {data.get('step')} of {data['steps']}")


def _placed(data: Mapping[str, Any]) -> str:
    starts = data.get("starts_in_s")
    when = f", starts in about {starts:.0f} s" if isinstance(starts, int | float) else ""
    return printable(f"number {data.get('queue_position')} in the queue{when}")
