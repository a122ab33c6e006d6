"""Named workflows over HTTP: stored, shown, changed, run and deleted."""

from __future__ import annotations

import copy
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import pytest

from events.store import workflows as store
from events.store.records import Scope
from serve_app.workflows.definition import InputDefinition
from serve_app.workflows.proposals import proposed_inputs
from tests.support.edge import Client, Edge, refusal
from tests.support.generate_bodies import CHECKPOINT, workflow_body
from tests.support.uploads import png, upload

URL = "/v1/workflows"
GRAPH: dict[str, Any] = workflow_body()["prompt"]
PROMPT_INPUT = {"prompt": {"node": "6", "input": "text", "required": True}}
LOAD_IMAGE = {
    "1": {"class_type": "LoadImage", "inputs": {"image": "cat.png"}},
    "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
}


def graph(**of_nodes: dict[str, Any]) -> dict[str, Any]:
    """The graph of the service document, with other inputs of some nodes (`n3`, `n6`)."""
    changed = copy.deepcopy(GRAPH)
    for node, inputs in of_nodes.items():
        changed[node.removeprefix("n")]["inputs"].update(inputs)
    return changed


async def stored(client: Client, name: str = "portrait", **members: Any) -> dict[str, Any]:
    answer = await client.post(URL, json={"name": name, "prompt": GRAPH} | members)
    assert answer.status_code == 201, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def run(client: Client, name: str = "portrait", **inputs: Any) -> dict[str, Any]:
    answer = await client.post(f"{URL}/{name}/generate", json={"inputs": inputs})
    assert answer.status_code == 202, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def graph_of(client: Client, job: dict[str, Any]) -> dict[str, Any]:
    detail = (await client.get(f"/v1/jobs/{job['request_id']}")).json()
    prompt: dict[str, Any] = detail["request"]["prompt"]
    return prompt


def wrong_fields(answer: Any) -> dict[str, str]:
    assert answer.status_code == 400, answer.text
    fields = answer.json()["error"]["extra_info"]["fields"]
    return {each["field"]: each["message"] for each in fields}


@pytest.fixture
async def other_admin(edge: Edge) -> AsyncIterator[Client]:
    async with await edge.client("olga", scopes=[Scope.ADMIN]) as client:
        yield client


class TestStore:
    async def test_inputs_and_outputs_are_proposed(self, client: Client) -> None:
        shown = await stored(client)
        assert {name: (each["node"], each["input"]) for name, each in shown["inputs"].items()} == {
            "seed": ("3", "seed"),
            "steps": ("3", "steps"),
            "checkpoint": ("4", "ckpt_name"),
            "width": ("5", "width"),
            "height": ("5", "height"),
            "batch_size": ("5", "batch_size"),
            "prompt": ("6", "text"),
            "negative_prompt": ("7", "text"),
        }
        assert shown["outputs"] == {"output": "9"}
        assert shown["prompt"] == GRAPH
        assert shown["inputs"]["steps"]["type"] == "integer"
        assert shown == (await client.get(f"{URL}/portrait")).json()

    async def test_titles_of_nodes_name_inputs_and_outputs(self, client: Client) -> None:
        titled = graph()
        titled["6"]["_meta"] = {"title": "input: subject"}
        titled["9"]["_meta"] = {"title": "output:final"}
        shown = await stored(client, prompt=titled)
        assert shown["inputs"]["subject"]["node"] == "6"
        assert "prompt" not in shown["inputs"]
        assert shown["outputs"] == {"final": "9"}

    async def test_titles_of_an_editor_file_are_kept(self, client: Client) -> None:
        load = {
            "id": 1,
            "type": "LoadImage",
            "title": "input:face",
            "inputs": [],
            "outputs": [{"type": "IMAGE"}, {"type": "MASK"}],
            "widgets_values": ["cat.png", "image"],
        }
        preview = {
            "id": 2,
            "type": "PreviewImage",
            "inputs": [{"name": "images", "type": "IMAGE", "link": 1}],
            "outputs": [],
            "widgets_values": [],
        }
        file = {"nodes": [load, preview], "links": [[1, 1, 0, 2, 0, "IMAGE"]], "version": 0.4}
        shown = await stored(client, prompt=file)
        assert {name: each["type"] for name, each in shown["inputs"].items()} == {"face": "image"}
        assert shown["outputs"] == {"output": "2"}

    async def test_given_inputs_get_the_types_of_their_nodes(self, client: Client) -> None:
        inputs = PROMPT_INPUT | {"sampler": {"node": "3", "input": "sampler_name"}}
        shown = await stored(client, inputs=inputs, description="People")
        assert {name: each["type"] for name, each in shown["inputs"].items()} == {
            "prompt": "string",
            "sampler": "string",
        }
        assert shown["description"] == "People"

    async def test_only_what_the_outputs_need_is_kept(self, client: Client) -> None:
        more = graph() | {"99": {"class_type": "PreviewImage", "inputs": {"images": ["8", 0]}}}
        assert (await stored(client, prompt=more))["outputs"] == {"output": "9", "output_2": "99"}
        shown = await stored(client, "one", prompt=more, outputs={"image": "99"})
        assert "9" not in shown["prompt"]

    @pytest.mark.parametrize(
        ("members", "field"),
        [
            ({"inputs": {"a": {"node": "60", "input": "text"}}}, "inputs.a"),
            ({"inputs": {"a": {"node": "3", "input": "model"}}}, "inputs.a"),
            ({"outputs": {"image": "90"}}, "outputs.image"),
            ({"inputs": {"a": {"node": "3", "input": "steps", "default": "x"}}}, "inputs.a"),
            ({"inputs": {"a": {"node": "6", "input": "text", "choices": [1]}}}, "inputs.a"),
        ],
    )
    async def test_a_wrong_definition_is_refused(
        self, client: Client, members: dict[str, Any], field: str
    ) -> None:
        answer = await client.post(URL, json={"name": "a", "prompt": GRAPH} | members)
        assert set(wrong_fields(answer)) == {field}

    async def test_a_graph_that_cannot_run_is_refused(self, client: Client) -> None:
        answer = await client.post(URL, json={"name": "a", "prompt": graph(n3={"steps": 0})})
        assert answer.status_code == 400
        assert "3" in answer.json()["node_errors"]
        assert (await client.get(f"{URL}/a")).status_code == 404

    @pytest.mark.parametrize("name", ["", "-a", "a@1", "a/b", "a b", "a" * 65, "ä", "a\n"])
    async def test_a_name_must_fit_in_a_path(self, client: Client, name: str) -> None:
        answer = await client.post(URL, json={"name": name, "prompt": GRAPH})
        assert set(wrong_fields(answer)) == {"name"}

    async def test_limits_of_an_owner(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store, "MAX_NAMES", 2)
        monkeypatch.setattr(store, "MAX_VERSIONS", 2)
        await stored(client, "a")
        await stored(client, "b")
        answer = await client.post(URL, json={"name": "c", "prompt": GRAPH})
        assert refusal(answer) == (409, "too_many_workflows")
        assert (await client.patch(f"{URL}/a", json={"description": "2"})).status_code == 200
        answer = await client.patch(f"{URL}/a", json={"description": "3"})
        assert refusal(answer) == (409, "too_many_workflows")
        monkeypatch.setattr(store, "MAX_BYTES", 5000)
        answer = await client.patch(f"{URL}/b", json={"description": "2"})
        assert refusal(answer) == (409, "too_many_workflows")


class TestVersions:
    async def test_a_change_is_a_new_version_and_old_ones_stay(self, client: Client) -> None:
        await stored(client)
        changed = await client.patch(f"{URL}/portrait", json={"prompt": graph(n6={"text": "dog"})})
        assert (changed.json()["shown"], changed.json()["version"]) == (2, 2)
        assert changed.json()["inputs"]["prompt"]["value"] == "dog"
        old = (await client.get(f"{URL}/portrait@1")).json()
        assert (old["prompt"], old["version"]) == (GRAPH, 2)
        assert (await client.get(f"{URL}/portrait@3")).status_code == 404

    async def test_a_marked_version_is_meant_by_the_name(self, client: Client) -> None:
        await stored(client)
        await client.patch(f"{URL}/portrait", json={"description": "new"})
        marked = await client.patch(f"{URL}/portrait", json={"marked": 1})
        assert (marked.json()["version"], marked.json()["marked"]) == (1, 1)
        assert (await run(client))["workflow"] == "portrait@1"
        await client.patch(f"{URL}/portrait", json={"marked": None})
        assert (await run(client))["workflow"] == "portrait@2"
        for body in ({"marked": 7}, {"marked": 10**30}, {"marked": 4, "description": "newer"}):
            answer = await client.patch(f"{URL}/portrait", json=body)
            assert set(wrong_fields(answer)) == {"marked"}
        body = {"marked": 3, "description": "newer"}
        answer = await client.patch(f"{URL}/portrait", json=body)
        assert (answer.json()["version"], answer.json()["shown"]) == (3, 3)

    async def test_a_new_graph_must_have_the_nodes_of_the_inputs(self, client: Client) -> None:
        await stored(client, inputs=PROMPT_INPUT)
        renamed = {node.replace("6", "16"): each for node, each in graph().items()}
        renamed["3"]["inputs"]["positive"] = ["16", 0]
        answer = await client.patch(f"{URL}/portrait", json={"prompt": renamed})
        assert set(wrong_fields(answer)) == {"inputs.prompt"}

    async def test_a_name_is_stored_once(self, client: Client) -> None:
        await stored(client)
        answer = await client.post(URL, json={"name": "portrait", "prompt": GRAPH})
        assert refusal(answer) == (409, "workflow_exists")


class TestRun:
    async def test_values_reach_the_graph_and_the_record(self, client: Client) -> None:
        await stored(client)
        job = await run(client, prompt="a dog", steps=3, seed=7)
        assert job["workflow"] == "portrait@1"
        prompt = await graph_of(client, job)
        assert prompt["6"]["inputs"]["text"] == "a dog"
        assert (prompt["3"]["inputs"]["steps"], prompt["3"]["inputs"]["seed"]) == (3, 7)
        detail = (await client.get(f"/v1/jobs/{job['request_id']}")).json()
        assert detail["inputs"] == {
            "prompt": "a dog",
            "negative_prompt": "",
            "steps": 3,
            "seed": 7,
            "checkpoint": CHECKPOINT,
            "width": 512,
            "height": 512,
            "batch_size": 1,
        }

    async def test_seeds_are_random_unless_they_are_given(self, client: Client) -> None:
        await stored(client)
        graphs = [await graph_of(client, await run(client)) for _ in range(2)]
        first, second = (each["3"]["inputs"]["seed"] for each in graphs)
        assert first != second
        assert min(first, second) >= 0

    async def test_a_wrong_value_is_told_by_the_name_of_its_input(self, client: Client) -> None:
        inputs = {
            "prompt": PROMPT_INPUT["prompt"],
            "steps": {"node": "3", "input": "steps", "maximum": 30},
            "model": {"node": "4", "input": "ckpt_name"},
            "sampler": {"node": "3", "input": "sampler_name", "choices": ["euler", "lcm"]},
        }
        await stored(client, inputs=inputs)
        wrong = {"steps": 31, "sampler": "heun", "size": 3}
        for route in ("generate", "check"):
            answer = await client.post(f"{URL}/portrait/{route}", json={"inputs": wrong})
            assert set(wrong_fields(answer)) == {
                "inputs.prompt",
                "inputs.steps",
                "inputs.sampler",
                "inputs.size",
            }
            unknown = {"prompt": "", "model": "none.safetensors"}
            answer = await client.post(f"{URL}/portrait/{route}", json={"inputs": unknown})
            assert set(wrong_fields(answer)) == {"inputs.model"}

    @pytest.mark.parametrize("value", ["3", True, 3.5, [3], {"a": 1}, 1e400, None])
    async def test_values_must_have_the_type_of_their_input(
        self, client: Client, value: Any
    ) -> None:
        await stored(client)
        text = '{"inputs": {"steps": %s}}' % ("1e400" if value == 1e400 else json.dumps(value))
        answer = await client.post(
            f"{URL}/portrait/generate",
            content=text,
            headers={"Content-Type": "application/json"},
        )
        assert answer.status_code == (202 if value is None else 400)

    async def test_images_are_uploads_or_inline(self, client: Client) -> None:
        await stored(client, "edit", prompt=LOAD_IMAGE)
        answer = await client.post(f"{URL}/edit/generate", json={})
        assert set(wrong_fields(answer)) == {"inputs.image"}
        await upload(client)
        assert await run(client, "edit")
        data = "data:image/png;base64," + b64encode(png("blue")).decode()
        job = await run(client, "edit", image=data)
        stored_name = (await graph_of(client, job))["1"]["inputs"]["image"]
        detail = (await client.get(f"/v1/jobs/{job['request_id']}")).json()
        assert [stored_name] == [*detail["input_files"]] == [detail["inputs"]["image"]]

    async def test_a_repeat_gets_the_same_job_also_after_a_change(self, client: Client) -> None:
        await stored(client)
        headers = {"Idempotency-Key": "once"}

        async def send(**inputs: Any) -> Any:
            body = {"inputs": inputs}
            return await client.post(f"{URL}/portrait/generate", json=body, headers=headers)

        first = await send(prompt="a")
        await client.patch(f"{URL}/portrait", json={"description": "new"})
        assert (await send(prompt="a")).json()["request_id"] == first.json()["request_id"]
        assert refusal(await send(prompt="b")) == (409, "idempotency_conflict")

    async def test_the_parameters_of_generate(self, client: Client) -> None:
        await stored(client)
        answer = await client.post(
            f"{URL}/portrait/generate",
            params={"endpoint": "none"},
            json={},
        )
        assert answer.status_code == 404
        answer = await client.post(
            f"{URL}/portrait/generate", params={"image_format": "webp", "alone": True}, json={}
        )
        assert answer.status_code == 202
        assert answer.headers["Location"].endswith(answer.json()["request_id"])

    async def test_the_schema_of_inputs(self, client: Client) -> None:
        inputs = PROMPT_INPUT | {"steps": {"node": "3", "input": "steps", "maximum": 30}}
        await stored(client, inputs=inputs, description="People")
        schema = (await client.get(f"{URL}/portrait/schema")).json()["inputs"]
        assert schema["properties"] == {
            "prompt": {"type": "string"},
            "steps": {"type": "integer", "default": 20, "maximum": 30},
        }
        assert schema["required"] == ["prompt"]
        assert schema["description"] == "People"


class TestOwners:
    async def test_another_owner_sees_an_unknown_name(self, client: Client, bob: Client) -> None:
        await stored(client)
        assert (await bob.get(URL)).json() == {"workflows": []}
        for method, path in (
            ("GET", "portrait"),
            ("GET", "portrait/schema"),
            ("PATCH", "portrait"),
            ("DELETE", "portrait"),
            ("POST", "portrait/generate"),
            ("POST", "portrait/check"),
        ):
            body = None if method in ("GET", "DELETE") else {}
            known = await bob.request(method, f"{URL}/{path}", json=body)
            unknown = await bob.request(method, f"{URL}/{path.replace('portrait', 'x')}", json=body)
            assert (known.status_code, known.text) == (404, unknown.text)

    async def test_a_shared_workflow_is_run_by_all_and_changed_by_administrators(
        self, admin: Client, client: Client, bob: Client, other_admin: Client
    ) -> None:
        answer = await client.post(URL, json={"name": "a", "prompt": GRAPH, "shared": True})
        assert refusal(answer) == (403, "forbidden")
        await stored(admin, shared=True)
        assert (await run(bob))["workflow"] == "portrait@1"
        assert [each["shared"] for each in (await bob.get(URL)).json()["workflows"]] == [True]
        assert (await bob.patch(f"{URL}/portrait", json={"marked": 1})).status_code == 404
        shared = {"shared": True}
        answer = await bob.patch(f"{URL}/portrait", params=shared, json={"marked": 1})
        assert refusal(answer) == (403, "forbidden")
        body = {"description": "new"}
        assert (
            await other_admin.patch(f"{URL}/portrait", params=shared, json=body)
        ).status_code == 200
        await stored(bob, prompt=graph(n6={"text": "bob"}))
        assert (await bob.get(f"{URL}/portrait")).json()["inputs"]["prompt"]["value"] == "bob"
        assert (await bob.get(f"{URL}/portrait", params=shared)).json()["shown"] == 2

    async def test_jobs_stay_when_their_workflow_is_deleted(self, client: Client) -> None:
        await stored(client)
        job = await run(client, prompt="a dog")
        assert (await client.delete(f"{URL}/portrait")).status_code == 204
        assert (await client.delete(f"{URL}/portrait")).status_code == 404
        detail = (await client.get(f"/v1/jobs/{job['request_id']}")).json()
        assert detail["result"]["workflow"] == "portrait@1"
        assert detail["inputs"]["prompt"] == "a dog"
        assert (await stored(client))["version"] == 1

    @pytest.mark.parametrize("scope", [Scope.READ, Scope.CANCEL])
    async def test_a_change_needs_the_scope_generate(self, edge: Edge, scope: Scope) -> None:
        async with await edge.client("alice", scopes=[scope]) as client:
            answer = await client.post(URL, json={"name": "a", "prompt": GRAPH})
            assert refusal(answer) == (403, "forbidden")


class TestHostileDefinitions:
    @pytest.mark.parametrize("huge", [10**400, -(10**400), 10**300])
    async def test_a_huge_number_is_compared_exactly(self, client: Client, huge: int) -> None:
        steps = {"node": "3", "input": "steps"}
        for member in ({"default": huge}, {"choices": [huge]}):
            answer = await client.post(
                URL, json={"name": "a", "prompt": GRAPH, "inputs": {"steps": steps | member}}
            )
            assert answer.status_code in (201, 400), answer.text
            await client.delete(f"{URL}/a")
        limits = steps | ({"minimum": huge} if huge > 0 else {"maximum": huge})
        await stored(client, inputs={"steps": limits, "cfg": {"node": "3", "input": "cfg"}})
        check = f"{URL}/portrait/check"
        assert set(wrong_fields(await client.post(check, json={"inputs": {"steps": 4}}))) == {
            "inputs.steps"
        }
        too_big = {"inputs": {"steps": huge, "cfg": huge}}
        assert (await client.post(check, json=too_big)).status_code == 400

    async def test_two_inputs_have_no_common_place(self, client: Client) -> None:
        inputs = {name: {"node": "3", "input": "steps", "default": 5} for name in ("a", "b")}
        answer = await client.post(URL, json={"name": "a", "prompt": GRAPH, "inputs": inputs})
        assert set(wrong_fields(answer)) == {"inputs.b"}

    async def test_a_call_has_no_more_inputs_than_a_workflow(self, client: Client) -> None:
        await stored(client)
        inputs = {f"a{number}": 1 for number in range(101)}
        answer = await client.post(f"{URL}/portrait/check", json={"inputs": inputs})
        assert set(wrong_fields(answer)) == {"inputs"}

    async def test_no_more_inputs_are_proposed_than_allowed(self) -> None:
        node = {"class_type": "Text", "inputs": {"text": ""}}
        declared = {"input": {"required": {"text": ["STRING", {"multiline": True}]}}}
        prompt = {str(number): node for number in range(110)}
        assert len(proposed_inputs(prompt, lambda _: declared)) == 100

    async def test_many_choices_are_not_compared_with_each_other(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[Any] = []
        error_of = InputDefinition.error_of
        monkeypatch.setattr(
            InputDefinition,
            "error_of",
            lambda self, value, **more: asked.append(value) or error_of(self, value, **more),
        )
        inputs = {"steps": {"node": "3", "input": "steps", "choices": list(range(1, 1000))}}
        await stored(client, inputs=inputs)
        assert asked == []
