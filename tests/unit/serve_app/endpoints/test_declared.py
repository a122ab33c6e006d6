"""Endpoints that a file declares."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from events.store.endpoints import Endpoints
from events.store.records import Endpoint, StoredEndpoint
from serve_app.endpoints.declared import (
    DeclaredEndpoints,
    EndpointsFileInvalid,
    read_declarations,
)
from settings.dispatch import DispatchSettings
from tests.support.database import database_in

DEFAULT = Endpoint("default", max_workers=3)
FILE = """
endpoints:
  default: {max_steps: 50}
  own:
    owner: alice
    gpus: 0.5
    checkpoints: [a, b]
  plain:
"""


@pytest.fixture
async def endpoints(tmp_path: Path) -> AsyncIterator[Endpoints]:
    async with database_in(tmp_path) as database:
        endpoints = Endpoints(database)
        await endpoints.add_missing(DEFAULT)
        yield endpoints


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "endpoints.yaml"


async def apply(endpoints: Endpoints, file: Path, text: str) -> None:
    file.write_text(text)
    await DeclaredEndpoints(
        endpoints, configured={"default": DEFAULT}, settings=DispatchSettings()
    ).apply(file)


async def test_what_it_says_is_there_and_the_rest_is_as_usual(
    endpoints: Endpoints, file: Path
) -> None:
    await apply(endpoints, file, FILE)
    assert await endpoints.all() == [
        replace(DEFAULT, max_steps=50),
        Endpoint("own", owner="alice", gpus=0.5, checkpoints=("a", "b"), min_workers=0),
        Endpoint("plain", min_workers=0),
    ]


async def test_it_is_applied_once_and_again_when_it_says_something_else(
    endpoints: Endpoints, file: Path
) -> None:
    await apply(endpoints, file, FILE)
    before = await endpoints.stored()
    await apply(endpoints, file, FILE)
    assert await endpoints.stored() == before
    own = before[1]
    changed = replace(own, endpoint=replace(own.endpoint, gpus=2.0, max_queued=5))
    assert await endpoints.change(changed)
    await apply(endpoints, file, FILE)
    assert await endpoints.get("own") == changed.endpoint
    await apply(endpoints, file, FILE.replace("gpus: 0.5", "gpus: 1"))
    assert await endpoints.get("own") == replace(own.endpoint, gpus=1.0, max_queued=5)


@pytest.mark.parametrize("taken_by", ["bob", None])
async def test_an_id_that_somebody_else_took_is_made_anew(
    endpoints: Endpoints, file: Path, taken_by: str | None
) -> None:
    taken = Endpoint("own", owner=taken_by, max_queued=0, gpus=64.0, draining=True)
    await endpoints.add(StoredEndpoint(endpoint=taken, given=frozenset({"max_queued", "gpus"})))
    await apply(endpoints, file, "endpoints: {own: {owner: alice, checkpoints: [a]}}")
    stored = await endpoints.stored_one("own")
    assert stored is not None
    assert stored.endpoint == Endpoint("own", owner="alice", checkpoints=("a",), min_workers=0)
    assert (stored.revision, stored.given) == (2, {"checkpoints"})


async def test_another_engine_is_not_applied(endpoints: Endpoints, file: Path) -> None:
    await apply(endpoints, file, "endpoints: {own: {}}")
    before = await endpoints.stored()
    server = "{engine: comfyui, comfyui_dir: /srv/ComfyUI}"
    await apply(endpoints, file, f"endpoints: {{own: {server}}}")
    assert await endpoints.stored() == before


async def test_what_it_gives_the_default_endpoint_stays_at_the_next_start(
    endpoints: Endpoints, file: Path
) -> None:
    await apply(endpoints, file, FILE)
    await endpoints.settle([replace(DEFAULT, max_workers=7, max_steps=9)])
    assert await endpoints.get("default") == replace(DEFAULT, max_workers=7, max_steps=50)


async def test_one_that_cannot_be_declared_holds_up_no_other(
    endpoints: Endpoints, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve_app.endpoints.administration._MAX_ENDPOINTS", 2)
    text = "endpoints: {bad: {min_workers: 2}, default: {owner: alice}, good: {}, more: {}}"
    await apply(endpoints, file, text)
    assert [each.id for each in await endpoints.all()] == ["default", "good"]
    assert await endpoints.get("default") == DEFAULT


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "must have the key `endpoints:`"),
        ("- a", "must have the key `endpoints:`"),
        ("endpoints: [a]", "must have the key `endpoints:`"),
        ("endpoints: {}\nother: 1", "must have the key `endpoints:`"),
        ("endpoints: {", "expected"),
        ("endpoints: {own: 1}", "'own': write its members below"),
        ("endpoints: {own: {id: x}}", "'own': write its members below"),
        ("endpoints: {'a b': {}}", "'a b': id:"),
        ("endpoints: {own: {colour: red}}", "'own': colour:"),
        ("endpoints: {own: {gpus: many}}", "'own': gpus:"),
        ("endpoints: {own: {draining: true}}", "'own': draining:"),
        ("#" * (1024 * 1024 + 1), "must have the key `endpoints:`"),
    ],
)
async def test_a_file_that_makes_no_sense_is_refused_and_changes_nothing(
    endpoints: Endpoints, file: Path, text: str, why: str
) -> None:
    await apply(endpoints, file, text)
    assert await endpoints.all() == [DEFAULT]
    with pytest.raises(EndpointsFileInvalid, match=why) as refused:
        read_declarations(file)
    assert str(file) in str(refused.value)


def test_a_file_that_is_not_there_is_named(file: Path) -> None:
    with pytest.raises(EndpointsFileInvalid, match=str(file)):
        read_declarations(file)
