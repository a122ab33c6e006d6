"""What an endpoint may be, for whom, and when its full queue has room again."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import ValidationError

from engine.errors import ParametersInvalid
from events.store.records import Endpoint
from serve_app.acceptance.acceptance import job_timeout_s, terms_of
from serve_app.endpoints.administration import (
    new_endpoint,
    require_listed,
    require_sound,
    require_within_limits,
    with_members,
)
from serve_app.endpoints.cache import EndpointCache
from serve_app.endpoints.schemas import EndpointChanges, NewEndpoint
from settings.dispatch import DispatchSettings
from settings.graph import GraphSettings
from settings.keys import OwnerSettings


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"id": "a b"}, "id"),
        ({"id": None}, "id"),
        ({"colour": "red"}, "colour"),
        ({"priority": 1}, "priority"),
        ({"draining": True}, "draining"),
        ({"owner": "a\x00b"}, "owner"),
        ({"checkpoint": ""}, "checkpoint"),
        ({"checkpoint": "a\nb"}, "checkpoint"),
        ({"checkpoints": []}, "checkpoints"),
        ({"checkpoints": ["a"] * 101}, "checkpoints"),
        ({"gpus": -1}, "gpus"),
        ({"gpus": 65}, "gpus"),
        ({"gpus": float("nan")}, "gpus"),
        ({"cpus": 0}, "cpus"),
        ({"resources": {"GPU": 1}}, "resources"),
        ({"resources": {"disk": 0}}, "resources"),
        ({"resources": {"a b": 1}}, "resources"),
        ({"resources": {f"r{number}": 1 for number in range(17)}}, "resources"),
        ({"labels": {"zone": "a b"}}, "labels"),
        ({"labels": {"zone": "in()"}}, "labels"),
        ({"labels": {"": "a"}}, "labels"),
        ({"min_workers": -1}, "min_workers"),
        ({"max_workers": 0}, "max_workers"),
        ({"max_workers": 1001}, "max_workers"),
        ({"jobs_per_worker": -1}, "jobs_per_worker"),
        ({"idle_timeout_s": -1}, "idle_timeout_s"),
        ({"job_timeout_s": 0}, "job_timeout_s"),
        ({"queue_timeout_s": float("inf")}, "queue_timeout_s"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_queued": -1}, "max_queued"),
        ({"max_pixels": 2**40}, "max_pixels"),
        ({"max_steps": 10_001}, "max_steps"),
        ({"max_cost": -1}, "max_cost"),
        ({"precision": "int8"}, "precision"),
        ({"compiler": "gcc"}, "compiler"),
        ({"compatibility": "a1111"}, "compatibility"),
    ],
)
def test_a_member_has_bounds(change: dict[str, Any], place: str) -> None:
    with pytest.raises(ValidationError) as refused:
        NewEndpoint.model_validate({"id": "fast", **change})
    assert {error["loc"][0] for error in refused.value.errors()} == {place}


def test_null_is_given_and_what_is_absent_is_not() -> None:
    change = EndpointChanges.model_validate({"gpus": None, "max_steps": 5, "revision": 3})
    assert change.given() == {"gpus": None, "max_steps": 5}
    change = EndpointChanges.model_validate({"draining": False})
    assert change.given() == {"draining": False}


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"min_workers": 2}, "min_workers"),
        ({"gpus": 1.5}, "gpus"),
        ({"checkpoint": "a", "checkpoints": ("b",)}, "checkpoint"),
        ({"job_timeout_s": 3601.0}, "job_timeout_s"),
        ({"job_timeout_s": 60.0, "queue_timeout_s": 61.0}, "queue_timeout_s"),
        ({"queue_timeout_s": 3601.0}, "queue_timeout_s"),
    ],
)
def test_members_go_together(members: dict[str, Any], field: str) -> None:
    with pytest.raises(ParametersInvalid) as refused:
        require_sound(Endpoint("fast", **members), DispatchSettings())
    assert [each.field for each in refused.value.fields] == [field]


def test_only_checkpoints_that_are_there_can_be_named() -> None:
    require_listed(Endpoint("fast", checkpoint="a", checkpoints=("a", "b")), ["a", "b"])
    require_listed(Endpoint("fast"), [])
    with pytest.raises(ParametersInvalid, match="'c'"):
        require_listed(Endpoint("fast", checkpoints=("a", "c")), ["a", "b"])


def require(
    others: tuple[Endpoint, ...] = (), *, given: tuple[str, ...] | None = None, **members: Any
) -> None:
    members = {"min_workers": 0, "gpus": 0.0} | members
    require_within_limits(
        Endpoint("own", owner="alice", **members),
        others,
        given=given,
        owners=OwnerSettings(),
        dispatch=DispatchSettings(),
        graph=GraphSettings(),
    )


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"min_workers": 1}, "min_workers"),
        ({"idle_timeout_s": 301.0}, "idle_timeout_s"),
        ({"resources": {"darkroom_cpu": 1.0}}, "resources"),
        ({"gpus": 0.5}, "gpus"),
        ({"cpus": 0.5}, "cpus"),
        ({"gpus": 3.0}, "gpus"),
        ({"gpus": None, "max_workers": 3}, "gpus"),
        ({"cpus": 5.0, "max_workers": 2}, "cpus"),
        ({"jobs_per_worker": 17}, "jobs_per_worker"),
        ({"max_pixels": 2**25}, "max_pixels"),
        ({"max_cost": 0.0}, "max_cost"),
        ({"max_cost": 2001.0}, "max_cost"),
    ],
)
def test_an_owner_takes_no_more_than_a_share(members: dict[str, Any], field: str) -> None:
    with pytest.raises(ParametersInvalid) as refused:
        require(**members)
    assert {each.field for each in refused.value.fields} == {field}


def test_the_share_is_that_of_all_their_endpoints() -> None:
    other = Endpoint("other", owner="alice", gpus=1.0, max_workers=1)
    require((other,), gpus=1.0)
    with pytest.raises(ParametersInvalid, match="the other endpoints take 1"):
        require((other,), gpus=2.0)


def test_what_an_administrator_gave_it_may_stay() -> None:
    beyond = {"min_workers": 2, "gpus": 4.0, "cpus": 0.5, "max_pixels": 2**25}
    require(given=("max_steps",), **beyond)
    for given, fields in (
        (("max_pixels",), {"max_pixels"}),
        (("max_workers",), {"gpus", "cpus"}),
        (("gpus", "max_queued"), {"gpus"}),
    ):
        with pytest.raises(ParametersInvalid) as refused:
            require(given=given, **beyond)
        assert {each.field for each in refused.value.fields} == fields


def test_what_is_below_the_limits_is_taken() -> None:
    require(gpus=None, cpus=4.0, max_workers=2, max_cost=1.0, max_pixels=256, idle_timeout_s=5.0)
    require(jobs_per_worker=16)


def used(status: Mapping[str, Any] | None) -> EndpointCache:
    async def tell(_id: str) -> Mapping[str, Any] | None:
        return status

    async def no_row(_id: str) -> Endpoint | None:
        return None

    endpoints, object_infos = cast("Any", SimpleNamespace(get=no_row)), cast("Any", None)
    return EndpointCache(endpoints, object_infos, tell)


@pytest.mark.parametrize(
    ("status", "expected_s"),
    [
        (None, 5),
        ({"rate_per_s": None}, 60),
        ({"rate_per_s": 0.5}, 22),
        ({"rate_per_s": 1000.0}, 1),
        ({"rate_per_s": 0.001}, 300),
    ],
)
async def test_it_is_once_a_twentieth_of_the_queue_is_free(
    status: Mapping[str, Any] | None, expected_s: int
) -> None:
    """Of 200 places that and one more, by the speed that the dispatcher tells."""
    refusal = await used(status).queue_full(Endpoint("own", max_queued=200), 200)
    assert refusal.retry_after_s == expected_s


def test_no_job_lasts_longer_than_the_settings_say() -> None:
    for own, expected in ((None, 60), (30.0, 30), (90.0, 60)):
        assert job_timeout_s(Endpoint("own", job_timeout_s=own), 60.0) == expected


def test_a_job_is_told_the_limits_of_its_endpoint_and_else_of_the_settings() -> None:
    settings = GraphSettings(max_cost=7)
    assert terms_of(Endpoint("own", max_steps=5), settings).max_cost == 7
    terms = terms_of(Endpoint("own", max_cost=0.0, max_attempts=2, queue_timeout_s=3.0), settings)
    assert (terms.max_cost, terms.max_attempts, terms.queue_timeout_s) == (0, 2, 3)


def test_null_restores_the_value_of_the_settings() -> None:
    comfyui = Endpoint("comfyui", engine="comfyui", comfyui_dir="/srv/ComfyUI", gpus=0.5)
    configured = {"default": Endpoint("default", cpus=2.0), comfyui.id: comfyui}
    before = new_endpoint(comfyui.id, configured, owner=None)

    changed = with_members(before, {"gpus": 1, "max_queued": 5}, configured)

    assert (changed.endpoint.gpus, changed.given) == (1, {"gpus", "max_queued"})
    assert with_members(changed, {"gpus": None, "max_queued": None}, configured) == before
    assert new_endpoint("other", configured, owner=None).endpoint == Endpoint(
        "other", cpus=2.0, min_workers=0
    )
