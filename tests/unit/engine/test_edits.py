"""Pictures of the graphs that edits of OpenAI's API become."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np

from engine.graph.catalogue import Catalogue
from events.store.records import Upload
from serve_app.protocols.openai.requests import Edit, EditParameters, edit_graph
from tests.support.engine.latents import recorded
from tests.support.engine.workflows import TINY
from tests.support.uploads import png_of

SAMPLING = {"sampler_name": "euler", "scheduler": "normal", "cfg": 7.0}

WIDTH, HEIGHT = 48, 32
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def upload(name: str) -> Upload:
    named = dict.fromkeys(("id", "owner", "name", "digest", "storage_key"), name)
    times = dict.fromkeys(("created_at", "used_at"), NOON)
    return Upload(**named, width=WIDTH, height=HEIGHT, size_bytes=1, **times)


COLOURS = np.random.default_rng(3).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
MASK = np.full((HEIGHT, WIDTH, 4), 255, np.uint8)
MASK[:, : WIDTH // 2, 3] = 0  # the left half is edited
FILES = {"image.png": png_of(COLOURS), "mask.png": png_of(MASK)}


def pictures(catalogue: Catalogue, **members: object) -> np.ndarray:
    asked = EditParameters.model_validate({"prompt": "a circle", "seed": 7, **members})
    edit = Edit(asked, TINY, 2, upload("image.png"), upload("mask.png"), SAMPLING)
    [run] = recorded([edit_graph(edit)], catalogue, FILES)
    return np.stack(run.images)


def test_what_the_mask_keeps_stays_to_the_pixel(catalogue: Catalogue) -> None:
    made = pictures(catalogue, n=2)
    assert made.shape == (2, HEIGHT, WIDTH, 3)
    assert np.array_equal(made[0][:, WIDTH // 2 :], COLOURS[:, WIDTH // 2 :])
    assert not np.array_equal(made[0][:, : WIDTH // 2], COLOURS[:, : WIDTH // 2])
    assert not np.array_equal(made[0], made[1])


def test_an_edit_has_the_size_that_was_asked_for(catalogue: Catalogue) -> None:
    assert pictures(catalogue, size="64x64").shape == (1, 64, 64, 3)
