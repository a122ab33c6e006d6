"""deploy/base/ray-service.yaml: who runs where, and what the loss of a node may take away."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from jinja2 import Environment
from ray.serve._private.application_state import _get_shared_build_app_label_selector
from ray.serve._private.haproxy import BackendConfig, HAProxyConfig
from ray.serve._private.haproxy_templates import HAPROXY_HEALTHZ_RULES_TEMPLATE
from ray.serve.schema import ServeApplicationSchema, ServeDeploySchema

from actors.remote_keeper import CPU_NODE
from serve_app.app import build
from settings.settings import Settings
from tests.support.deploy.manifests import (
    ROOT,
    Manifest,
    container,
    environment,
    gpu_limit,
    node_groups,
    one,
    ray_cluster_spec,
)

SERVICE = one("base/ray-service.yaml", "RayService")
GROUPS = node_groups(SERVICE)
GPU_GROUPS = {name: group for name, group in GROUPS.items() if gpu_limit(group)}
SETTINGS = environment("base/settings.env")
CPU_RESOURCE = next(iter(CPU_NODE))


@pytest.fixture(scope="module")
def serve_config() -> ServeDeploySchema:
    """As Ray Serve itself reads it."""
    return ServeDeploySchema.model_validate(yaml.safe_load(SERVICE["spec"]["serveConfigV2"]))


@pytest.fixture(scope="module")
def application(serve_config: ServeDeploySchema) -> ServeApplicationSchema:
    assert len(serve_config.applications) == 1
    return serve_config.applications[0]


def names_in(source: Manifest) -> set[str]:
    return {entry["name"] for entry in source.get("env", ())}


def config_maps(group: Manifest) -> set[str]:
    return {source["configMapRef"]["name"] for source in container(group).get("envFrom", ())}


# The application.


def test_serve_starts_the_application_of_the_code(application: ServeApplicationSchema) -> None:
    assert application.import_path == f"{build.__module__}:{build.__name__}"
    assert application.route_prefix == "/"


def test_deployments_are_those_of_the_code(
    application: ServeApplicationSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DARKROOM_SECRET", "x" * 32)
    ingress = build({})
    names = {ingress._bound_deployment.name}
    names |= {each._bound_deployment.name for each in ingress._bound_deployment.init_args}
    assert {deployment.name for deployment in application.deployments} == names


def test_http_listens_where_kuberay_asks(serve_config: ServeDeploySchema) -> None:
    ports = {port["name"]: port["containerPort"] for port in container(GROUPS["edge"])["ports"]}
    assert (serve_config.http_options.host, serve_config.http_options.port) == (
        "0.0.0.0",
        ports["serve"],
    )


def healthz_answers(*backends: BackendConfig) -> list[str]:
    """What a HAProxy of an edge node answers at `/-/healthz`, by its rules in their order."""
    config = HAProxyConfig(
        has_received_routes=True, has_received_servers=bool(backends), metrics_enabled=False
    )
    rules = (
        Environment()
        .from_string(HAPROXY_HEALTHZ_RULES_TEMPLATE)
        .render(
            config=config,
            backends=backends,
            health_info=config.build_health_route_info([*backends]),
        )
    )
    return [line.strip() for line in rules.splitlines() if "http-request return" in line]


def test_a_node_gets_no_request_before_its_haproxy_has_a_replica() -> None:
    """Until then that answers each with 404. KubeRay's probe, which is not there beside one of our
    own, asks it for `/-/healthz`, and takes nothing but a "success".
    """
    assert "readinessProbe" not in container(GROUPS["edge"])
    assert all("success" not in answer for answer in healthz_answers())
    replica = BackendConfig(name="api", path_prefix="/", app_name="darkroom")
    whole, rest = healthz_answers(replica)
    assert '"success"' in whole
    assert whole.endswith("if healthcheck backend_api_server_up")
    assert "return status 503" in rest


# A head without anything of Darkroom.


def test_head_offers_nothing_that_an_actor_asks_for() -> None:
    head = GROUPS["head"]
    assert head["rayStartParams"]["num-cpus"] == "0"
    assert head["rayStartParams"]["num-gpus"] == "0"
    assert "resources" not in head["rayStartParams"]
    assert "resources" not in head


def test_head_takes_no_requests() -> None:
    assert SERVICE["spec"]["excludeHeadPodFromServeSvc"] is True


def test_every_deployment_needs_what_edge_nodes_alone_have(
    application: ServeApplicationSchema,
) -> None:
    for deployment in application.deployments:
        assert deployment.ray_actor_options.resources == CPU_NODE
    offers = {name for name, group in GROUPS.items() if CPU_RESOURCE in group.get("resources", {})}
    assert offers == {"edge"}
    assert gpu_limit(GROUPS["edge"]) == 0


def test_application_is_built_where_its_settings_are(application: ServeApplicationSchema) -> None:
    """Serve builds it in a task; a selector that all deployments share says on which node."""
    selector = _get_shared_build_app_label_selector(application)
    assert selector
    fitting = {
        name
        for name, group in GROUPS.items()
        if selector.items() <= group.get("labels", {}).items()
    }
    assert fitting == {"edge"}
    assert {
        name for name, group in GROUPS.items() if "darkroom-settings" in config_maps(group)
    } == {"edge"}


def test_a_lost_edge_node_leaves_an_http_replica(application: ServeApplicationSchema) -> None:
    api = next(each for each in application.deployments if each.name == "Api")
    assert api.max_replicas_per_node == 1
    replicas = int(SETTINGS["DARKROOM_HTTP_REPLICAS"])
    assert 2 <= replicas <= GROUPS["edge"]["minReplicas"]


def test_edge_nodes_are_on_different_machines() -> None:
    spread = GROUPS["edge"]["template"]["spec"]["topologySpreadConstraints"]
    hard = [each for each in spread if each["whenUnsatisfiable"] == "DoNotSchedule"]
    assert [each["topologyKey"] for each in hard] == ["kubernetes.io/hostname"]
    labels = GROUPS["edge"]["template"]["metadata"]["labels"]
    assert all(each["labelSelector"]["matchLabels"].items() <= labels.items() for each in spread)


def test_a_lost_head_comes_back_knowing_its_cluster() -> None:
    options = ray_cluster_spec(SERVICE)["gcsFaultToleranceOptions"]
    service = one("redis/stateful-set.yaml", "Service", "redis")
    assert options["redisAddress"] == f"redis:{service['spec']['ports'][0]['port']}"
    assert options["redisPassword"]["valueFrom"]["secretKeyRef"] == {
        "name": "redis",
        "key": "password",
    }


def test_the_cluster_asks_for_a_token() -> None:
    assert ray_cluster_spec(SERVICE)["authOptions"] == {"mode": "token"}


# GPU nodes that come and go.


def test_there_are_two_kinds_of_gpus_and_one_is_preferred() -> None:
    machines = [
        tuple(group["template"]["spec"]["nodeSelector"].items()) for group in GPU_GROUPS.values()
    ]
    assert len(set(machines)) == len(GPU_GROUPS) == 2
    assert len({group["priority"] for group in GPU_GROUPS.values()}) == 2


@pytest.mark.parametrize("name", GPU_GROUPS)
def test_gpu_nodes_start_from_none_and_go_soon(name: str) -> None:
    group = GPU_GROUPS[name]
    assert group["minReplicas"] == 0
    assert 0 < group["idleTimeoutSeconds"] <= 60
    assert gpu_limit(group) == int(SETTINGS["DARKROOM_WORKER_GPUS"])


@pytest.mark.parametrize("name", GPU_GROUPS)
def test_gpu_nodes_have_no_secret_and_no_setting(name: str) -> None:
    """Workers are handed the settings that they are made from."""
    pod = container(GPU_GROUPS[name])
    assert names_in(pod) == set()
    assert config_maps(GPU_GROUPS[name]) == {"darkroom-ray"}
    secrets = [
        each["secret"]
        for each in GPU_GROUPS[name]["template"]["spec"]["volumes"]
        if "secret" in each
    ]
    assert secrets == [{"secretName": "nats-tls", "items": [{"key": "ca.crt", "path": "ca.crt"}]}]


def test_darkroom_asks_for_as_many_workers_as_there_may_be_gpu_nodes() -> None:
    most = sum(group["maxReplicas"] for group in GPU_GROUPS.values())
    assert int(SETTINGS["DARKROOM_MAX_WORKERS"]) == most
    assert int(SETTINGS["DARKROOM_MIN_WORKERS"]) == 0


def test_applying_the_file_again_leaves_the_autoscalers_number_of_nodes_alone() -> None:
    workers = ray_cluster_spec(SERVICE)["workerGroupSpecs"]
    assert all("replicas" not in group for group in workers)


def test_both_kinds_differ_in_nothing_but_their_machine() -> None:
    def shared(group: Manifest) -> Any:
        spec = {**group["template"]["spec"], "nodeSelector": None}
        return {**group["template"], "spec": spec}

    first, second = map(shared, GPU_GROUPS.values())
    assert first == second


# Settings.


def test_every_setting_is_one_of_the_code() -> None:
    assert {name for name in SETTINGS if name.startswith("DARKROOM_")} <= Settings.variables()
    for group in GROUPS.values():
        named = {name for name in names_in(container(group)) if name.startswith("DARKROOM_")}
        assert named <= Settings.variables()


def test_secrets_are_no_part_of_the_config_map() -> None:
    assert SETTINGS.keys() & Settings.secret_variables() == set()
    env = {entry["name"]: entry for entry in container(GROUPS["edge"])["env"]}
    for name in ("DARKROOM_SECRET", "DARKROOM_NATS_URL", "DARKROOM_DATABASE_URL"):
        assert env[name]["valueFrom"]["secretKeyRef"]["name"] == "darkroom"


def test_settings_load(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    settings = Settings.load()
    assert settings.log.replicas == one("nats/stateful-set.yaml", "StatefulSet")["spec"]["replicas"]


@pytest.mark.parametrize("name", ["edge", *GPU_GROUPS])
def test_nodes_have_the_models_and_the_authority_where_the_settings_say(name: str) -> None:
    mounts = {each["mountPath"]: each for each in container(GROUPS[name])["volumeMounts"]}
    assert mounts[SETTINGS["DARKROOM_MODELS_DIR"]]["readOnly"] is True
    folder, _, file = SETTINGS["DARKROOM_NATS_CA_FILE"].rpartition("/")
    volumes = {each["name"]: each for each in GROUPS[name]["template"]["spec"]["volumes"]}
    source = volumes[mounts[folder]["name"]]["secret"]
    assert source["items"] == [{"key": "ca.crt", "path": file}]


def test_ray_is_the_version_of_the_constraints() -> None:
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert f"ray=={ray_cluster_spec(SERVICE)['rayVersion']}" in pins
