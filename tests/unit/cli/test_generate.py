"""`darkroom generate`: what it shows of a job, and how it is left by Ctrl-C."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Awaitable
from io import BytesIO, StringIO
from typing import Any, NoReturn

import httpx
import pytest
from click.testing import Result
from darkroom_client import Darkroom, Event
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from cli import connection
from cli.main import app
from cli.progress import JobView, can_show, half_blocks
from events.job_progress import JobProgress
from tests.support.edge import Edge
from tests.support.polling import eventually
from tests.unit.cli.conftest import Run


def terminal(**options: Any) -> Console:
    """One that somebody looks at, in all colours; what it shows goes to its file."""
    given = {"force_terminal": True, "color_system": "truecolor", "width": 100, "height": 30}
    return Console(file=StringIO(), **given | options)


def jpeg(width: int, height: int, colour: str = "red") -> bytes:
    data = BytesIO()
    Image.new("RGB", (width, height), colour).save(data, "JPEG", quality=100)
    return data.getvalue()


class TestHalfBlocks:
    def test_two_pixels_are_a_character_within_the_terminal(self) -> None:
        drawn = half_blocks(jpeg(64, 64), terminal())
        assert drawn is not None
        lines = drawn.plain.splitlines()
        assert (len(lines), {len(line) for line in lines}) == (24, {48})
        wide = half_blocks(jpeg(128, 32), terminal(width=20))
        assert wide is not None
        assert {len(line) for line in wide.plain.splitlines()} == {20}

    def test_its_colours_are_those_of_the_picture(self) -> None:
        console = terminal()
        console.print(half_blocks(jpeg(8, 8), console))
        assert "38;2;254;0;0;48;2;254;0;0m▀" in shown_on(console)

    @pytest.mark.parametrize("data", [b"", b"no picture", jpeg(8, 8)[:-40], jpeg(5000, 8)])
    def test_what_is_no_small_jpeg_is_not_drawn(self, data: bytes) -> None:
        assert half_blocks(data, terminal()) is None

    @pytest.mark.parametrize(
        ("options", "can"),
        [
            ({}, True),
            ({"color_system": "256"}, True),
            ({"color_system": "standard"}, False),
            ({"color_system": None}, False),
            ({"force_terminal": False}, False),
        ],
    )
    def test_a_terminal_must_be_one_with_enough_colours(
        self, options: dict[str, Any], can: bool
    ) -> None:
        assert can_show(terminal(**options)) is can


class TestJobView:
    def test_it_says_place_steps_and_picture(self) -> None:
        console = terminal()
        preview = b64encode(jpeg(8, 8)).decode()
        with JobView(console, "diffusion a-job") as view:
            told: list[tuple[str, dict[str, Any], str]] = [
                ("queued", {"queue_position": 3, "starts_in_s": 9.6}, "number 3 in the queue"),
                ("progress", {"progress": 0.35, "step": 7, "steps": 20}, "step 7 of 20"),
                ("preview", {"jpeg": preview}, "▀"),
                ("attempt_failed", {}, "retrying"),
                ("cancelled", {}, "cancelled"),
            ]
            for name, data, said in told:
                view.note(Event(name, data))
                assert said in shown_on(console)

    @pytest.mark.parametrize("sent", [None, "?", "/9j/4AAQ", ["a"]])
    def test_a_preview_that_is_none_is_passed_over(self, sent: Any) -> None:
        with JobView(terminal(), "a job") as view:
            view.note(Event("preview", {"jpeg": sent}))

    def test_a_terminal_obeys_nothing_that_a_service_sends(self) -> None:
        console = terminal()
        with JobView(console, "a job") as view:
            view.note(Event("progress", {"progress": 0, "class_type": "\x1b]0;title\x07[red]"}))
        assert "\x1b]0;" not in shown_on(console)


def shown_on(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


class TestOnAnEdge:
    @pytest.fixture
    async def key(self, edge: Edge) -> str:
        return await edge.key("alice")

    async def generated(
        self, edge: Edge, client: httpx.AsyncClient, result: Awaitable[Result]
    ) -> Result:
        """What becomes of the command while its job is run."""
        running = asyncio.ensure_future(result)
        job_id = await eventually(lambda: submitted(edge, client))
        await edge.start(job_id)
        edge.progress.tell(job_id, JobProgress(done=1, total=4, preview=jpeg(8, 8)))
        await edge.complete(job_id, images=0)  # whose addresses would lead to no service
        return await running

    async def test_a_job_is_followed_to_its_end(
        self, edge: Edge, client: httpx.AsyncClient, run: Run, key: str
    ) -> None:
        ended = await self.generated(edge, client, run(key, "generate", "a circle"))
        assert ended.exit_code == 0, ended.output
        first, *rest = ended.stdout.splitlines()
        assert first.startswith("diffusion ")
        assert json.loads("\n".join(rest))["state"] == "completed"
        assert "▀" not in ended.stdout

    async def test_a_program_gets_json_alone_and_pictures_of_the_format_that_it_asked_for(
        self, edge: Edge, client: httpx.AsyncClient, run: Run, key: str
    ) -> None:
        options = ("--image-format", "webp", "--image-quality", "80", "--json")
        command = run(key, "generate", "a circle", *options)
        answer = json.loads((await self.generated(edge, client, command)).stdout)
        assert (answer["status"], answer["files"]) == (1, [])
        asked = (await edge.job(answer["request_id"])).submitted
        assert (asked.image_format, asked.image_quality) == ("webp", 80)

    async def test_a_format_that_there_is_not_is_refused(self, run: Run, key: str) -> None:
        for option in (("--image-format", "gif"), ("--image-quality", "101")):
            assert (await run(key, "generate", "a circle", *option)).exit_code == 2


async def submitted(edge: Edge, client: httpx.AsyncClient) -> str | None:
    """The id of the one job, once it is there."""
    await edge.project()
    jobs = (await client.get("/v1/jobs")).json()["jobs"]
    return str(jobs[0]["request_id"]) if jobs else None


class Interrupted(Darkroom):
    """A service whose job never ends, with a caller who presses Ctrl-C."""

    is_cancelled: bool
    paths: list[str]

    def call(self, method: str, path: str, **_options: Any) -> Any:
        self.paths.append(path)
        return {"request_id": "a-job", "status": 0, "cancelled": self.is_cancelled}

    def watch(self, *_given: Any, **_options: Any) -> NoReturn:
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("options", "is_cancelled", "told"),
    [
        ((), True, "a-job is cancelled."),
        ((), False, "a-job had already ended. Its result: darkroom result a-job"),
        (("--keep",), True, "The job continues. Its result: darkroom result a-job"),
    ],
)
def test_ctrl_c_cancels_the_job_or_says_that_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], is_cancelled: bool, told: str
) -> None:
    paths: list[str] = []
    members = {"is_cancelled": is_cancelled, "paths": paths}
    monkeypatch.setattr(connection, "Darkroom", type("Service", (Interrupted,), members))
    result = CliRunner().invoke(app, ["generate", "a circle", "--key", "dk", *options])
    assert result.exit_code == 130
    assert told in result.stderr
    assert ("/v1/jobs/a-job/cancel" in paths) is (not options)
