"""Draws a sheet of generated pictures with their prompts and seeds.

python -m training.shapes.contact_sheet [OUT.png]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from training.shapes.export import CHECKPOINT
from training.shapes.studio import open_studio

OUT = Path("docs/images/contact-sheet.png")
PROMPTS = (
    "a red circle on a white background",
    "on a blue background, a large yellow star",
    "a tiny heart, pink, top left, over black",
    "a big orange crescent moon on a purple background",
    "a green ring on yellow",
    "a white cross, bottom right, on a red background",
    "a cyan triangle on a brown background",
    "a small black square in the center, gray background",
    "a blue star left of a red heart on a white background",
    "a yellow moon above a green square on black",
    "an orange ring to the right of a purple cross, cyan background",
    "pink circle below a white triangle over blue",
    "a purple heart and a green star on a yellow background",
    "a red square, a white circle and a blue triangle",
    "a black ring on orange and white stripes",
    "a yellow circle on a gradient from blue to black",
)
_COLUMNS = 4
_CELL = (256, 292)
_PICTURE = 192
_MARGIN = 8
_LINE = 32
"""The largest number of characters in a line of the caption."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.shapes.contact_sheet", description="Draw the contact sheet."
    )
    parser.add_argument("out", nargs="?", type=Path, default=OUT)
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    args = parser.parse_args()
    requests = [
        {"prompt": prompt, "seed": seed, "cfg_scale": 5.0, "steps": 20}
        for seed, prompt in enumerate(PROMPTS, start=1)
    ]
    with open_studio(args.checkpoint) as studio:
        pictures = studio.generate(requests)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    contact_sheet(pictures).save(args.out, optimize=True)
    print(args.out)


def contact_sheet(pictures: NDArray[np.uint8]) -> Image.Image:
    """Return a sheet of the pictures for PROMPTS, each above its prompt and seed."""
    rows = -(-len(PROMPTS) // _COLUMNS)
    sheet = Image.new("RGB", (_COLUMNS * _CELL[0], rows * _CELL[1]), "white")
    writer, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=13)
    for index, (prompt, picture) in enumerate(zip(PROMPTS, pictures, strict=True)):
        row, column = divmod(index, _COLUMNS)
        left, top = column * _CELL[0] + _MARGIN, row * _CELL[1] + _MARGIN
        large = Image.fromarray(picture).resize((_PICTURE, _PICTURE), Image.Resampling.NEAREST)
        sheet.paste(large, (left + (_CELL[0] - _PICTURE) // 2 - _MARGIN, top))
        words = f"{_wrapped(prompt)}\nseed {index + 1}"
        writer.multiline_text((left, top + _PICTURE + 6), words, fill="black", font=font)
    return sheet


def _wrapped(text: str) -> str:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > _LINE:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


if __name__ == "__main__":
    main()
