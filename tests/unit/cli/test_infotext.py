"""`darkroom infotext` reads the text itself, and the picture that it came in."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from PIL import Image
from PIL.ExifTags import IFD, Base
from PIL.PngImagePlugin import PngInfo
from typer.testing import CliRunner

from cli.main import app

TEXT = "a red circle\nSteps: 9, Sampler: Euler a, CFG scale: 5, Seed: 7, Size: 64x64"


def run(*words: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(app, ["infotext", *words], input=typed)


def save_png(path: Path, **text: str) -> str:
    info = PngInfo()
    for name, value in text.items():
        info.add_text(name, value)
    Image.new("RGB", (8, 8)).save(path, pnginfo=info)
    return str(path)


def test_the_text_and_the_picture_that_has_it_are_one_request(tmp_path: Path) -> None:
    png = save_png(tmp_path / "a.png", parameters=TEXT)
    (tmp_path / "a.txt").write_text(TEXT)
    requests = [run(png), run(str(tmp_path / "a.txt")), run(typed=TEXT)]
    assert {each.exit_code for each in requests} == {0}
    first, *others = [json.loads(each.stdout) for each in requests]
    assert others == [first, first]
    assert (first["prompt"], first["steps"], first["seed"]) == ("a red circle", 9, 7)


@pytest.mark.parametrize("suffix", ["jpg", "webp"])
def test_a_picture_of_another_format_has_it_in_its_exif(tmp_path: Path, suffix: str) -> None:
    exif = Image.Exif()
    exif.get_ifd(IFD.Exif)[Base.UserComment] = b"UNICODE\0" + TEXT.encode("utf-16-be")
    path = tmp_path / f"a.{suffix}"
    Image.new("RGB", (8, 8)).save(path, exif=exif)
    assert json.loads(run(str(path)).stdout)["steps"] == 9


@pytest.mark.parametrize("kind", ["bare", "cut", "other"])
def test_a_picture_without_the_text_is_told(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.png"
    save_png(path, other="text")
    if kind == "cut":
        path.write_bytes(path.read_bytes()[:12])
    elif kind == "other":
        path.write_bytes(b"\xff\xd8\xff\xe0")
    told = run(str(path))
    assert told.exit_code == 2
    assert "Traceback" not in told.output
    assert told.output.strip()
