import json
from datetime import timedelta
from pathlib import Path

import pytest

from events.ids import new_id
from events.store.records import Endpoint
from events.types import Flavour
from tests.support.edge import Client, Edge, refusal, running_edge
from tests.support.events import LATER
from tests.support.generate_bodies import (
    CHECKPOINT,
    GENERATE_PATHS,
    body_for,
    diffusion_body,
    workflow_body,
)

WORKFLOW = "/api/v1/workflow/generate"
DIFFUSION = "/diffusion/v1/generate"
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(("path", "flavour"), GENERATE_PATHS.items())
async def test_a_body_of_the_service_document_is_accepted_and_readable_at_once(
    edge: Edge, client: Client, path: str, flavour: Flavour
) -> None:
    answer = await client.post(path, json=body_for(flavour))
    assert answer.status_code == 202
    assert answer.json()["status"] == 0
    assert answer.json()["results"] == ([] if flavour is Flavour.WORKFLOW else [{"status": 0}])
    query = f"?request_id={answer.json()['request_id']}"
    assert answer.headers["Location"] == path.replace("generate", "result") + query
    result = await client.get(answer.headers["Location"])
    assert result.status_code == 200
    assert result.json() == answer.json()
    submitted = await edge.submitted(answer)
    assert (submitted.flavour, submitted.owner, submitted.endpoint) == (flavour, "alice", "default")


async def test_a_job_with_a_prompt_alone_takes_every_default(edge: Edge, client: Client) -> None:
    submitted = await edge.submitted(await client.post(DIFFUSION, json={"prompt": "a cat"}))
    assert submitted.request["sd_model_checkpoint"] == CHECKPOINT
    assert submitted.images == 1


async def test_an_empty_default_checkpoint_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DARKROOM_DEFAULT_CHECKPOINT", "")
    async with running_edge(tmp_path) as edge, await edge.client() as client:
        submitted = await edge.submitted(await client.post(DIFFUSION, json={"prompt": "a cat"}))
        assert submitted.request["sd_model_checkpoint"] == CHECKPOINT


async def test_members_of_comfyuis_own_clients_are_accepted(edge: Edge, client: Client) -> None:
    extra_data = {"extra_pnginfo": {"workflow": {"nodes": [None]}}}
    body = {**workflow_body(), "client_id": "a", "extra_data": extra_data, "number": 1}
    request = (await edge.submitted(await client.post(WORKFLOW, json=body))).request
    assert request["extra_data"] == extra_data
    assert set(request) == {"prompt", "extra_data"}


@pytest.mark.edge(job_timeout_s=90)
async def test_the_deadline_counts_from_the_acceptance(edge: Edge, client: Client) -> None:
    answer = await client.post(DIFFUSION, json=diffusion_body())
    job = await edge.job(answer.json()["request_id"])
    assert job.deadline - job.submitted_at == timedelta(seconds=90)


async def test_the_trace_of_the_caller_is_kept(edge: Edge, client: Client) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    for sent, kept in ((trace, trace), ("00-zz", None), ("00-" + "0" * 32 + "-1-01", None)):
        answer = await client.post(WORKFLOW, json=workflow_body(), headers={"traceparent": sent})
        assert (await edge.job(answer.json()["request_id"])).traceparent == kept


class TestSeeds:
    async def test_a_negative_seed_is_drawn_and_recorded(self, edge: Edge, client: Client) -> None:
        answers = [await client.post(DIFFUSION, json=diffusion_body(seed=-1)) for _ in range(2)]
        seeds = [(await edge.submitted(answer)).request["seed"] for answer in answers]
        assert all(0 <= seed < 2**32 for seed in seeds)
        assert seeds[0] != seeds[1]

    async def test_a_workflow_draws_its_own(self, edge: Edge, client: Client) -> None:
        answer = await client.post(WORKFLOW, json=workflow_body(seed=-1))
        request = (await edge.submitted(answer)).request
        inputs = request["prompt"]["3"]["inputs"]
        assert 0 <= inputs["seed"] < 2**32
        assert inputs == {**workflow_body()["prompt"]["3"]["inputs"], "seed": inputs["seed"]}

    async def test_a_recorded_request_can_be_sent_again(self, edge: Edge, client: Client) -> None:
        for path, flavour in GENERATE_PATHS.items():
            first = await client.post(path, json=body_for(flavour))
            request = (await edge.submitted(first)).request
            again = await client.post(path, json=request)
            assert (await edge.submitted(again)).request == request


class TestEndpoint:
    async def test_a_job_runs_on_the_endpoint_that_is_named(
        self, edge: Edge, client: Client
    ) -> None:
        await edge.services.endpoints.put(Endpoint(id="big"))
        answer = await client.post(f"{WORKFLOW}?endpoint=big", json=workflow_body())
        assert (await edge.submitted(answer)).endpoint == "big"

    async def test_an_unknown_one_is_404(self, client: Client) -> None:
        for endpoint in ("unknown", "", "a.b", "*", "\x00", "ä", "a" * 65):
            query = {"endpoint": endpoint}
            answer = await client.post(WORKFLOW, params=query, json=workflow_body())
            assert refusal(answer) == (404, "not_found"), endpoint

    async def test_its_limits_hold(self, edge: Edge, client: Client) -> None:
        await edge.services.endpoints.put(Endpoint(id="small", max_pixels=256 * 256, max_steps=10))
        for path, body in (
            (WORKFLOW, workflow_body()),
            (WORKFLOW, workflow_body(steps=11)),
            (DIFFUSION, diffusion_body(width=256, height=264, steps=1)),
            (DIFFUSION, diffusion_body(width=256, height=256, steps=11)),
        ):
            assert (await client.post(f"{path}?endpoint=small", json=body)).status_code == 400

    async def test_a_full_queue_is_429(self, edge: Edge, client: Client) -> None:
        await edge.services.endpoints.put(Endpoint(id="short", max_queued=2))
        await edge.queue.add("short", 0, new_id(), deadline=LATER)
        url = f"{WORKFLOW}?endpoint=short"
        assert (await client.post(url, json=workflow_body())).status_code == 202
        await edge.queue.add("short", 0, new_id(), deadline=LATER)
        answer = await client.post(url, json=workflow_body())
        assert refusal(answer) == (429, "queue_full")
        assert answer.json()["error"]["message"] == "The queue of endpoint short is full."
        assert answer.headers["Retry-After"] == "5"


class TestCallbackUrl:
    async def test_an_allowed_one_is_recorded(self, edge: Edge, client: Client) -> None:
        edge.name_server.answers["hooks.example.com"] = ("8.8.8.8",)
        for url in ("https://hooks.example.com/done?job=1", "http://127.0.0.1:9000/task_completed"):
            answer = await client.post(WORKFLOW, params={"callback_url": url}, json=workflow_body())
            assert (await edge.submitted(answer)).callback_url == url

    async def test_another_is_refused(self, edge: Edge, client: Client) -> None:
        edge.name_server.answers["inner.example.com"] = ("8.8.8.8", "10.0.0.1")
        hosts = ("10.0.0.1", "inner.example.com", "nowhere.example.com")
        for url in ("", "ftp://example.com/", *(f"http://{host}/" for host in hosts)):
            answer = await client.post(WORKFLOW, params={"callback_url": url}, json=workflow_body())
            assert refusal(answer) == (400, "callback_url_not_allowed"), url


async def test_a_job_may_ask_to_share_no_calls(edge: Edge, client: Client) -> None:
    for query, recorded in (("", None), ("?alone=true", True)):
        answer = await client.post(WORKFLOW + query, json=workflow_body())
        assert (await edge.submitted(answer)).alone is recorded


class TestRefusedGraph:
    async def test_it_has_comfyuis_shape(self, client: Client) -> None:
        body = workflow_body()
        del body["prompt"]["3"]["inputs"]["seed"]
        answer = await client.post(WORKFLOW, json=body)
        assert answer.status_code == 400
        refusal = answer.json()
        assert refusal["error"]["type"] == "prompt_outputs_failed_validation"
        node = refusal["node_errors"]["3"]
        assert (node["class_type"], node["dependent_outputs"]) == ("KSampler", ["9"])
        error = node["errors"][0]
        assert error["type"] == "required_input_missing"
        assert error["extra_info"] == {"input_name": "seed"}

    async def test_a_body_without_a_graph_is_no_prompt(self, client: Client) -> None:
        graphs = [{"3": 1}, {"3": {}}, {"3": {"class_type": "KSampler"}, "4": 1}]
        for body in (None, [], "x", 1, {}, {"prompt": None}, {"prompt": []}, *graphs):
            answer = await client.post(WORKFLOW, content=json.dumps(body), headers=JSON)
            assert refusal(answer) == (400, "no_prompt"), body

    async def test_one_bad_output_refuses_the_job(self, client: Client) -> None:
        body = workflow_body()
        body["prompt"]["10"] = {"class_type": "SaveImage", "inputs": {"images": ["8", 7]}}
        assert (await client.post(WORKFLOW, json=body)).status_code == 400

    async def test_extra_data_must_be_an_object(self, client: Client) -> None:
        answer = await client.post(WORKFLOW, json={**workflow_body(), "extra_data": [1]})
        assert answer.status_code == 400
        assert answer.json()["error"]["extra_info"]["fields"][0]["field"] == "extra_data"


class TestRefusedParameters:
    async def test_each_bad_field_has_an_entry(self, client: Client) -> None:
        body = diffusion_body(steps=0, width="wide", sampler_name="none such", hires=True)
        body["override_settings"]["samples_format"] = "jpg"
        answer = await client.post(DIFFUSION, json=body)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["type"] == "invalid_request"
        fields = {"steps", "width", "sampler_name", "hires", "override_settings.samples_format"}
        assert {each["field"] for each in error["extra_info"]["fields"]} == fields
        assert "samples_format" in error["details"]

    async def test_a_body_that_is_no_request_is_refused(self, client: Client) -> None:
        for body in (None, [], "x", 1, {"compatibility": "comfyui"}):
            answer = await client.post(DIFFUSION, content=json.dumps(body), headers=JSON)
            assert refusal(answer) == (400, "invalid_request"), body

    async def test_an_unknown_checkpoint_is_named(self, client: Client) -> None:
        body = diffusion_body(override_settings={"sd_model_checkpoint": "none.safetensors"})
        answer = await client.post(DIFFUSION, json=body)
        assert answer.status_code == 400
        assert CHECKPOINT in answer.json()["error"]["details"]
        assert answer.text.count(CHECKPOINT) == 1

    async def test_a_list_of_names_is_told_once(self, client: Client) -> None:
        answer = await client.post(DIFFUSION, json=diffusion_body(sampler_name="Eulr"))
        assert answer.text.count("DPM adaptive") == 1
        graph = workflow_body()
        graph["prompt"]["3"]["inputs"]["sampler_name"] = "eulr"
        answer = await client.post(WORKFLOW, json=graph)
        assert answer.text.count("dpm_adaptive") == 1
        assert answer.json()["error"]["details"].endswith("sampler_name: 'eulr'")
