"""Endpoints over HTTP: made, shown, changed, drained and deleted."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from events.ids import new_id
from events.store.object_infos import ObjectInfos
from events.store.records import Endpoint, Scope
from tests.support.edge import Client, Edge, refusal
from tests.support.events import LATER
from tests.support.generate_bodies import CHECKPOINT, workflow_body
from tests.support.uploads import png

URL = "/v1/endpoints"
GENERATE = "/workflow/v1/generate"
SCOPES = (Scope.ENDPOINTS, Scope.GENERATE, Scope.READ)


@pytest.fixture
async def alice(edge: Edge) -> AsyncIterator[Client]:
    async with await edge.client("alice", scopes=SCOPES) as alice:
        yield alice


async def created(client: Client, id: str = "own", **members: Any) -> dict[str, Any]:
    answer = await client.post(URL, json={"id": id, "gpus": 0, **members})
    assert answer.status_code == 201, answer.text
    body: dict[str, Any] = answer.json()
    return body


class TestCreate:
    async def test_what_is_said_is_kept_and_the_rest_is_as_usual(self, admin: Client) -> None:
        said = {
            "checkpoint": CHECKPOINT,
            "checkpoints": [CHECKPOINT],
            "gpus": 0.25,
            "cpus": 2.5,
            "resources": {"fast_disk": 1.0},
            "labels": {"ray.io/accelerator-type": "in(L4,A10G)", "zone": "!b"},
            "min_workers": 1,
            "max_workers": 3,
            "jobs_per_worker": 2,
            "idle_timeout_s": 9.0,
            "job_timeout_s": 60.0,
            "queue_timeout_s": 30.0,
            "max_attempts": 2,
            "max_queued": 7,
            "max_pixels": 65536,
            "max_steps": 50,
            "max_cost": 12.5,
            "precision": "bfloat16",
            "channels_last": True,
            "compiler": "inductor",
        }
        answer = await admin.post(URL, json={"id": "fast", "owner": "alice", **said})
        assert answer.headers["Location"] == f"{URL}/fast"
        said |= {"engine": "darkroom"}
        rest = {"id": "fast", "owner": "alice", "revision": 1, "state": "open"}
        assert answer.json() == rest | said
        assert (await admin.get(f"{URL}/fast")).json() == answer.json() | {"queued": 0}
        assert answer.json() in (await admin.get(URL)).json()["endpoints"]
        usual = await created(admin, "usual")
        assert (usual["min_workers"], usual["max_workers"], usual["max_queued"]) == (0, 1, 10_000)
        assert usual.keys().isdisjoint({"owner", "checkpoint", "max_cost", "precision"})

    @pytest.mark.parametrize(
        "change",
        [
            {"colour": "red"},
            {"checkpoints": ["unknown.safetensors"]},
            {"job_timeout_s": 3601},
            {"id": "-fast"},
            {"owner": "alice\u202e"},
        ],
    )
    async def test_what_makes_no_sense_is_a_bad_request(
        self, admin: Client, change: dict[str, Any]
    ) -> None:
        answer = await admin.post(URL, json={"id": "fast", **change})
        assert refusal(answer) == (400, "invalid_request")
        fields = answer.json()["error"]["extra_info"]["fields"]
        assert [each["field"] for each in fields] == list(change)

    @pytest.mark.parametrize(
        ("members", "wrong"),
        [
            ({"comfyui_url": "http://host:8188"}, None),
            ({"comfyui_dir": "/srv/ComfyUI", "comfyui_args": ["--lowvram"]}, None),
            (
                {
                    "comfyui_dir": "/srv/ComfyUI",
                    "comfyui_max_jobs": 9,
                    "comfyui_max_memory_gib": 0.5,
                    "comfyui_partner_nodes": True,
                },
                None,
            ),
            ({"comfyui_url": "http://host", "comfyui_max_jobs": 9}, {"comfyui_max_jobs"}),
            (
                {
                    "comfyui_url": "http://host",
                    "comfyui_required_nodes": ["A"],
                    "comfyui_allowed_nodes": ["A", "B"],
                    "comfyui_denied_nodes": ["B"],
                },
                None,
            ),
            (
                {"comfyui_url": "http://host", "comfyui_allowed_nodes": []},
                {"comfyui_allowed_nodes"},
            ),
            ({"comfyui_dir": "/srv/ComfyUI", "comfyui_max_jobs": 0}, {"comfyui_max_jobs"}),
            ({"comfyui_url": "http://host", "checkpoint": "of the server.ckpt"}, None),
            ({"comfyui_url": "http://host", "compatibility": "webui"}, {"compatibility"}),
            ({}, {"engine"}),
            ({"comfyui_url": "http://host:8188", "comfyui_dir": "/srv/ComfyUI"}, {"engine"}),
            ({"comfyui_url": "file:///etc/passwd"}, {"comfyui_url"}),
            ({"comfyui_dir": "ComfyUI"}, {"comfyui_dir"}),
            (
                {"comfyui_url": "http://host", "comfyui_args": ["-x"], "max_workers": 2, "gpus": 1},
                {"comfyui_args", "max_workers", "gpus"},
            ),
            ({"engine": "darkroom", "comfyui_dir": "/srv/ComfyUI"}, {"comfyui_dir"}),
        ],
    )
    async def test_an_endpoint_with_comfyui_has_one_server(
        self, admin: Client, members: dict[str, Any], wrong: set[str] | None
    ) -> None:
        answer = await admin.post(URL, json={"id": "comfy", "engine": "comfyui"} | members)
        if wrong is None:
            assert answer.status_code == 201
            shown = (await admin.get(f"{URL}/comfy")).json()
            assert {name: shown[name] for name in members} == members
        else:
            assert refusal(answer) == (400, "invalid_request")
            fields = answer.json()["error"]["extra_info"]["fields"]
            assert {each["field"].partition(".")[0] for each in fields} == wrong

    async def test_only_administrators_choose_comfyui(self, alice: Client) -> None:
        body = {"id": "own", "gpus": 0, "engine": "comfyui", "comfyui_dir": "/srv/ComfyUI"}
        answer = await alice.post(URL, json=body)
        assert refusal(answer) == (400, "invalid_request")
        assert "administrators" in answer.text

    @pytest.mark.parametrize("engine", ["darkroom", None])
    async def test_the_engine_stays_because_jobs_wait_for_it(
        self, admin: Client, engine: str | None
    ) -> None:
        await created(admin, "comfy", engine="comfyui", comfyui_dir="/srv/ComfyUI")
        change = {"engine": engine, "comfyui_dir": None}
        answer = await admin.patch(f"{URL}/comfy", json=change)
        assert refusal(answer) == (400, "invalid_request")
        assert "cannot be changed" in answer.text

    async def test_an_owner_does_not_change_the_server_that_an_administrator_chose(
        self, admin: Client, alice: Client
    ) -> None:
        comfyui = {"engine": "comfyui", "comfyui_dir": "/srv/ComfyUI"}
        await created(admin, owner="alice", **comfyui)
        for change in (
            {"comfyui_dir": "/evil"},
            {"comfyui_python": "/bin/sh"},
            {"comfyui_args": []},
            {"comfyui_partner_nodes": True},
            {"comfyui_denied_nodes": None, "comfyui_allowed_nodes": ["A"]},
        ):
            answer = await alice.patch(f"{URL}/own", json=change)
            assert refusal(answer) == (400, "invalid_request")
        assert (await alice.patch(f"{URL}/own", json={"max_queued": 5})).status_code == 200

    async def test_an_id_is_given_once(self, admin: Client, alice: Client) -> None:
        await created(admin)
        answer = await alice.post(URL, json={"id": "own", "gpus": 0})
        assert refusal(answer) == (409, "endpoint_exists")

    async def test_there_is_a_most_of_them(
        self, admin: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("serve_app.endpoints.administration._MAX_ENDPOINTS", 2)
        await created(admin, "a")
        answer = await admin.post(URL, json={"id": "b"})
        assert refusal(answer) == (429, "too_many_endpoints")
        assert "2 endpoints" in answer.json()["error"]["message"]


class TestOwner:
    async def test_an_endpoint_of_an_owner_is_theirs_alone(
        self, edge: Edge, admin: Client, alice: Client
    ) -> None:
        assert (await created(alice))["owner"] == "alice"
        await created(admin, "everybodys")
        assert [each["id"] for each in (await alice.get(URL)).json()["endpoints"]] == ["own"]
        async with await edge.client("bob", scopes=SCOPES) as bob:
            for client, path, status in (
                (alice, "own", 202),
                (admin, "own", 202),
                (bob, "own", 404),
                (bob, "everybodys", 202),
            ):
                answer = await client.post(f"{GENERATE}?endpoint={path}", json=workflow_body())
                assert answer.status_code == status
            assert (await bob.get(f"{URL}/everybodys")).status_code == 404

    async def test_who_is_no_administrator_makes_none_for_others(self, alice: Client) -> None:
        assert (await alice.post(URL, json={"id": "own", "owner": "bob"})).status_code == 403

    async def test_an_owner_takes_no_more_than_a_share(self, admin: Client, alice: Client) -> None:
        await created(alice)
        change = {"min_workers": 1, "resources": {"darkroom_cpu": 1}}
        answer = await alice.patch(f"{URL}/own", json=change)
        assert answer.status_code == 400
        fields = {each["field"] for each in answer.json()["error"]["extra_info"]["fields"]}
        assert fields == change.keys()
        assert (await admin.patch(f"{URL}/own", json=change)).status_code == 200

    async def test_requests_at_the_same_moment_take_no_more_than_the_share(
        self, alice: Client
    ) -> None:
        bodies = [{"id": f"own-{number}", "gpus": 0} for number in range(9)]
        answers = await asyncio.gather(*(alice.post(URL, json=body) for body in bodies))
        assert sorted(each.status_code for each in answers) == [201] * 2 + [429] * 7
        own = [each["id"] for each in (await alice.get(URL)).json()["endpoints"]]
        change = {"max_workers": 5}
        answers = await asyncio.gather(
            *(alice.patch(f"{URL}/{id}", json=change) for id in own for _ in range(3))
        )
        assert {each.status_code for each in answers} == {200, 400}
        workers = [each["max_workers"] for each in (await alice.get(URL)).json()["endpoints"]]
        assert sorted(workers) == [1, 5]

    async def test_a_key_administers_the_endpoints_that_it_may_use(
        self, edge: Edge, alice: Client
    ) -> None:
        await created(alice)
        key_id = alice.headers["Authorization"].split("_")[1]
        await edge.services.keys.change(key_id, endpoints=("other",))
        async with await edge.client("alice", scopes=SCOPES) as unbound:
            assert (await unbound.get(f"{URL}/own")).status_code == 200
        edge.app.state.replica.callers.authenticator.forget(key_id)
        assert (await alice.get(f"{URL}/own")).status_code == 403
        assert (await alice.get(URL)).json() == {"endpoints": []}


class TestChange:
    async def test_what_is_absent_stays_and_null_is_as_usual(self, admin: Client) -> None:
        before = await created(admin, max_steps=5, max_queued=3, precision="float16")
        change = {"max_steps": None, "precision": None, "max_workers": 4}
        after = (await admin.patch(f"{URL}/own", json=change)).json()
        assert (after["max_steps"], after["max_queued"], after["max_workers"]) == (10_000, 3, 4)
        assert "precision" not in after
        assert after["revision"] == before["revision"] + 1

    async def test_what_changes_nothing_is_no_revision(self, admin: Client) -> None:
        before = await created(admin, max_steps=5)
        for change in ({}, {"max_steps": 5}, {"draining": False}):
            answer = await admin.patch(f"{URL}/own", json=change)
            assert answer.json()["max_steps"] == 5
        assert answer.json()["revision"] <= before["revision"] + 1

    async def test_one_that_was_changed_meanwhile_is_not_changed(self, admin: Client) -> None:
        await created(admin)
        first = await admin.patch(f"{URL}/own", json={"max_steps": 5, "revision": 1})
        assert first.json()["revision"] == 2
        answer = await admin.patch(f"{URL}/own", json={"max_steps": 6, "revision": 1})
        assert refusal(answer) == (409, "endpoint_changed")
        assert "revision 2" in answer.json()["error"]["message"]

    async def test_the_default_one_has_what_it_is_not_given_from_the_settings(
        self, edge: Edge, admin: Client
    ) -> None:
        await admin.patch(f"{URL}/default", json={"max_workers": 4, "max_steps": 9})
        stored = await edge.services.endpoints.stored_one("default")
        assert stored is not None
        assert stored.given == {"max_workers", "max_steps"}
        answer = await admin.patch(f"{URL}/default", json={"max_workers": None})
        assert answer.json()["max_workers"] == 1
        answer = await admin.delete(f"{URL}/default")
        assert answer.status_code == 409


class TestDrainAndDelete:
    async def test_one_that_is_drained_takes_no_jobs_until_it_is_not(self, admin: Client) -> None:
        await created(admin)
        answer = await admin.patch(f"{URL}/own", json={"draining": True})
        assert answer.json()["state"] == "draining"
        answer = await admin.post(f"{GENERATE}?endpoint=own", json=workflow_body())
        assert refusal(answer) == (503, "endpoint_draining")
        assert answer.headers["Retry-After"] == "60"
        await admin.patch(f"{URL}/own", json={"draining": False})
        answer = await admin.post(f"{GENERATE}?endpoint=own", json=workflow_body())
        assert answer.status_code == 202

    async def test_one_that_is_deleted_is_unknown_to_new_jobs(self, admin: Client) -> None:
        await created(admin)
        answer = await admin.delete(f"{URL}/own?drain_s=50")
        assert (answer.status_code, answer.json()["state"]) == (202, "deleting")
        ends_at = answer.json()["ends_at"]
        answer = await admin.post(f"{GENERATE}?endpoint=own", json=workflow_body())
        assert answer.status_code == 404
        assert (await admin.patch(f"{URL}/own", json={"max_steps": 5})).status_code == 404
        assert (await admin.delete(f"{URL}/own")).json()["ends_at"] == ends_at
        assert (await admin.delete(f"{URL}/own?drain_s=90")).json()["ends_at"] == ends_at
        assert (await admin.delete(f"{URL}/own?drain_s=0")).json()["ends_at"] < ends_at

    async def test_a_time_that_makes_no_sense_is_a_bad_request(self, admin: Client) -> None:
        await created(admin)
        for drain_s in ("-1", "86401", "nan", "x"):
            answer = await admin.delete(f"{URL}/own?drain_s={drain_s}")
            assert answer.status_code == 400, drain_s


SERVER = {"version": "0.3.64", "failed_imports": ["a-pack"]}


class TestShow:
    async def test_workers_queue_and_pace_are_those_of_the_dispatcher(
        self, edge: Edge, admin: Client
    ) -> None:
        await created(admin)
        await edge.queue.add("own", 0, new_id(), deadline=LATER)
        ready = {"is_current": True, "running": 1, "trouble": None, "later": "unknown"}
        edge.statuses["own"] = {
            "workers": [
                {"state": "ready", "checkpoints": ["b", "a"], "server": SERVER, **ready},
                {"state": "leaving", "checkpoints": ["c"], **ready},
            ],
            "oldest_waiting_s": 1.5,
            "rate_per_s": 0.25,
        }
        body = (await admin.get(f"{URL}/own")).json()
        assert (body["queued"], body["running"]) == (1, 2)
        assert body["warm_checkpoints"] == ["a", "b"]
        assert (body["oldest_waiting_s"], body["rate_per_s"]) == (1.5, 0.25)
        assert [worker["state"] for worker in body["workers"]] == ["ready", "leaving"]
        assert [worker.get("server") for worker in body["workers"]] == [SERVER, None]

    async def test_an_unknown_one_is_404(self, admin: Client) -> None:
        for id in ("unknown", "%00", "a.b", "a" * 65):
            for method in ("GET", "DELETE"):
                assert (await admin.request(method, f"{URL}/{id}")).status_code == 404
            assert (await admin.patch(f"{URL}/{id}", json={})).status_code == 404


def declared(class_type: str, outputs: list[str], **inputs: Any) -> dict[str, Any]:
    """Return the declaration of a core node in `/object_info`."""
    return {
        "input": {"required": inputs},
        "output": outputs,
        "output_node": not outputs,
        "name": class_type,
        "python_module": "nodes",
    }


CHECKPOINTS = [CHECKPOINT, "new.safetensors"]
OBJECT_INFO = {
    "CheckpointLoaderSimple": declared(
        "CheckpointLoaderSimple", ["MODEL", "CLIP", "VAE"], ckpt_name=[CHECKPOINTS]
    ),
    "CLIPTextEncode": declared("CLIPTextEncode", ["CONDITIONING"], text=["STRING"]),
    "EmptyLatentImage": declared("EmptyLatentImage", ["LATENT"]),
    "KSampler": declared(
        "KSampler",
        ["LATENT"],
        sampler_name=[["euler", "new_sampler"]],
    )
    | {"input": {"optional": {"sampler_name": [["euler", "new_sampler"]], "new_input": ["INT"]}}},
    "VAEDecode": declared("VAEDecode", ["IMAGE"]),
    "LoadImage": declared("LoadImage", ["IMAGE"], image=[["a.png"], {"image_upload": True}]),
    "NodeOfAPack": declared("NodeOfAPack", []),
    "SaveImage": declared("SaveImage", []),
}


async def with_comfyui(edge: Edge, admin: Client) -> None:
    """Create an endpoint whose server has declared its node types, and another that falls back to
    it.
    """
    await created(admin, "both", fallback="comfy")
    await created(admin, "comfy", engine="comfyui", comfyui_dir="/srv/ComfyUI")
    endpoint = Endpoint("comfy", engine="comfyui", comfyui_dir="/srv/ComfyUI")
    content = zlib.compress(json.dumps(OBJECT_INFO).encode())
    await ObjectInfos(edge.services.backends.database).put(endpoint, "digest", content)


class TestObjectInfo:
    async def test_nothing_is_known_before_the_first_server_is_ready(
        self, admin: Client, alice: Client
    ) -> None:
        await created(admin, "new", engine="comfyui", comfyui_dir="/srv/ComfyUI")
        answer = await alice.get("/v1/object_info?endpoint=new")
        assert refusal(answer) == (404, "not_found")

    async def test_the_callers_files_are_choices(
        self, edge: Edge, admin: Client, alice: Client
    ) -> None:
        await with_comfyui(edge, admin)
        await alice.post("/v1/uploads", files={"image": ("cat.png", png())})
        for path in ("/v1/object_info?endpoint=comfy", "/object_info?endpoint=comfy"):
            listed = (await alice.get(path)).json()
            assert listed.keys() == OBJECT_INFO.keys()
            assert listed["LoadImage"]["input"]["required"]["image"][0] == ["cat.png"]
        both = (await alice.get("/v1/object_info?endpoint=both")).json()
        assert {"NodeOfAPack", "LatentUpscale"} <= both.keys()
        usual = (await alice.get("/v1/object_info")).json()
        assert "NodeOfAPack" not in usual
        assert both["EmptyLatentImage"] == usual["EmptyLatentImage"]
        own, *options = usual["KSampler"]["input"]["required"]["sampler_name"]
        more = [[*own, "new_sampler"], *options]
        usual["KSampler"]["input"]["required"]["sampler_name"] = more
        assert both["KSampler"] == usual["KSampler"]
        checkpoints = both["CheckpointLoaderSimple"]["input"]["required"]["ckpt_name"][0]
        assert checkpoints == [CHECKPOINT, "new.safetensors"]
        assert both["LoadImage"]["input"]["required"]["image"][0] == ["cat.png"]
        one = (await alice.get("/object_info/NodeOfAPack?endpoint=both")).json()
        assert one == {"NodeOfAPack": OBJECT_INFO["NodeOfAPack"]}
        answer = await alice.get("/v1/object_info?endpoint=unknown")
        assert refusal(answer) == (404, "not_found")


UNKNOWN = {"prompt": {"1": {"class_type": "NodeOfAPack", "inputs": {}}}}


class TestFallback:
    async def post(self, client: Client, body: dict[str, Any]) -> Any:
        return await client.post(f"{GENERATE}?endpoint=both", json=body)

    async def test_a_graph_with_an_unknown_node_runs_on_the_fallback(
        self, admin: Client, alice: Client
    ) -> None:
        await created(admin, "comfy", engine="comfyui", comfyui_dir="/srv/ComfyUI")
        await created(admin, "both", fallback="comfy")
        for body, endpoint in ((workflow_body(), "both"), (UNKNOWN, "comfy")):
            answer = await self.post(alice, body)
            assert (answer.status_code, answer.json()["endpoint"]) == (202, endpoint)
        without_upload = {"1": {"class_type": "LoadImage", "inputs": {"image": "missing.png"}}}
        invalid = workflow_body()["prompt"] | without_upload
        invalid["2"] = {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}}
        answer = await self.post(alice, {"prompt": invalid})
        assert answer.status_code == 400

    async def test_what_the_server_declares_decides_about_other_errors(
        self, edge: Edge, admin: Client, alice: Client
    ) -> None:
        await with_comfyui(edge, admin)
        for inputs, endpoint in (
            ({}, "both"),
            ({"sampler_name": "new_sampler"}, "comfy"),
            ({"new_input": 1}, "comfy"),
            ({"other_input": 1}, "both"),
        ):
            answer = await self.post(alice, workflow_body(**inputs))
            assert (answer.status_code, answer.json()["endpoint"]) == (202, endpoint), inputs
        for inputs, type in (
            ({"sampler_name": "no_sampler"}, "value_not_in_list"),
            ({"steps": 20_000}, "value_bigger_than_max"),
        ):
            answer = await self.post(alice, workflow_body(**inputs))
            assert answer.status_code == 400
            assert type in answer.text
        answer = await self.post(alice, {"prompt": {"1": {"class_type": "No", "inputs": {}}}})
        assert refusal(answer) == (400, "missing_node_type")
        assert answer.json()["error"]["details"] == "No"

    async def test_a_model_that_only_the_server_has_runs_there(
        self, edge: Edge, admin: Client, alice: Client
    ) -> None:
        await with_comfyui(edge, admin)
        graph = workflow_body()["prompt"]
        graph["4"]["inputs"] = {"ckpt_name": "new.safetensors"}
        answer = await self.post(alice, {"prompt": graph})
        assert (answer.status_code, answer.json()["endpoint"]) == (202, "comfy")

    async def test_a_model_of_another_family_runs_there(
        self, edge: Edge, admin: Client, alice: Client, tmp_path: Path
    ) -> None:
        keys = ("model.diffusion_model.joint_blocks.x", "text_encoders.x")
        file = tmp_path / "models" / "checkpoints" / "new.safetensors"
        save_file({key: np.zeros(1, np.float16) for key in keys}, file)
        graph = workflow_body()["prompt"]
        graph["4"]["inputs"] = {"ckpt_name": "new.safetensors"}
        refused = await alice.post(GENERATE, json={"prompt": graph})
        assert refused.status_code == 400
        [error] = refused.json()["node_errors"]["4"]["errors"]
        assert error["type"] == "model_not_supported"
        assert "new.safetensors is not a known checkpoint: it is Stable Diffusion 3" in str(error)
        await created(admin, "both", fallback="comfy")
        await created(admin, "comfy", engine="comfyui", comfyui_dir="/srv/ComfyUI")
        answer = await self.post(alice, {"prompt": graph})
        assert (answer.status_code, answer.json()["endpoint"]) == (202, "comfy")
        body = {"prompt": "a cat", "sd_model_checkpoint": "new.safetensors"}
        refused = await alice.post("/diffusion/v1/generate", json=body)
        assert refused.status_code == 400
        assert "sd_model_checkpoint" in refused.text
        assert "Stable Diffusion 3" in refused.text

    async def test_the_checkpoints_of_an_endpoint_hold_on_its_fallback(
        self, edge: Edge, admin: Client, alice: Client
    ) -> None:
        await with_comfyui(edge, admin)
        limited = {"checkpoints": [CHECKPOINT]}
        assert (await admin.patch(f"{URL}/both", json=limited)).status_code == 200
        assert (await self.post(alice, UNKNOWN)).json()["endpoint"] == "comfy"
        graph = workflow_body()["prompt"] | UNKNOWN["prompt"]
        graph["4"]["inputs"] = {"ckpt_name": "new.safetensors"}
        assert refusal(await self.post(alice, {"prompt": graph})) == (400, "value_not_in_list")

    async def test_node_types_that_cannot_be_read_are_as_unknown_ones(
        self, edge: Edge, admin: Client, alice: Client
    ) -> None:
        await with_comfyui(edge, admin)
        endpoint = Endpoint("comfy", engine="comfyui", comfyui_dir="/srv/ComfyUI")
        for number, content in enumerate((b"<html>", zlib.compress(b"<html>"))):
            object_infos = ObjectInfos(edge.services.backends.database)
            await object_infos.put(endpoint, str(number), content)
            replica = edge.another_replica()
            async with await replica.client("alice", scopes=SCOPES) as client:
                assert (await self.post(client, workflow_body())).status_code == 202
                assert (await self.post(client, UNKNOWN)).json()["endpoint"] == "comfy"

    @pytest.mark.parametrize("change", [{"draining": True}, {"owner": "bob"}, None])
    async def test_a_fallback_that_the_key_may_not_use_now_changes_nothing(
        self, edge: Edge, admin: Client, alice: Client, change: dict[str, Any] | None
    ) -> None:
        await created(admin, "both", fallback="comfy")
        if change is not None:
            comfyui = {"engine": "comfyui", "comfyui_dir": "/srv/ComfyUI"}
            await created(admin, "comfy", **comfyui, owner=change.get("owner"))
        if change == {"draining": True}:
            assert (await admin.patch(f"{URL}/comfy", json=change)).status_code == 200
        assert refusal(await self.post(alice, UNKNOWN)) == (400, "missing_node_type")

    async def test_an_endpoint_is_not_its_own_fallback(self, admin: Client) -> None:
        answer = await admin.post(URL, json={"id": "both", "fallback": "both"})
        assert refusal(answer) == (400, "invalid_request")
