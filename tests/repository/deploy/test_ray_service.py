"""The Ray clusters of deploy/: who runs where, and what the loss of a node may take away."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from jinja2 import Environment
from ray.serve._private.application_state import _get_shared_build_app_label_selector
from ray.serve._private.haproxy import BackendConfig, HAProxyConfig
from ray.serve._private.haproxy_templates import HAPROXY_HEALTHZ_RULES_TEMPLATE
from ray.serve.schema import ServeApplicationSchema, ServeDeploySchema

from actors.scheduler.worker_reaper import CPU_NODE
from serve_app.app import build
from settings.settings import Settings
from tests.support.deploy.manifests import (
    Manifest,
    container,
    environment,
    gpu_limit,
    node_groups,
    one,
    pins,
    ray_cluster_spec,
)

SERVICE = one("base/ray-service.yaml", "RayService")
CLUSTER = one("ray-cluster.yaml", "RayCluster")
GROUPS = node_groups(SERVICE)
GPU_GROUPS = {name: group for name, group in GROUPS.items() if gpu_limit(group)}
SETTINGS = environment("base/settings.env")
CPU_RESOURCE = next(iter(CPU_NODE))

of_both = pytest.mark.parametrize(
    "manifest", [SERVICE, CLUSTER], ids=["ray-service.yaml", "ray-cluster.yaml"]
)


@pytest.fixture(scope="module")
def application() -> ServeApplicationSchema:
    """As Ray Serve itself reads it."""
    config = ServeDeploySchema.model_validate(yaml.safe_load(SERVICE["spec"]["serveConfigV2"]))
    ports = {port["name"]: port["containerPort"] for port in container(GROUPS["edge"])["ports"]}
    assert (config.http_options.host, config.http_options.port) == ("0.0.0.0", ports["serve"])
    [application] = config.applications
    return application


def variables_of(group: Manifest) -> dict[str, Manifest]:
    return {entry["name"]: entry for entry in container(group).get("env", ())}


def config_maps(group: Manifest) -> set[str]:
    return {source["configMapRef"]["name"] for source in container(group).get("envFrom", ())}


# Both clusters.


@of_both
def test_every_setting_is_one_of_the_code(manifest: Manifest) -> None:
    names = {name for group in node_groups(manifest).values() for name in variables_of(group)}
    names |= SETTINGS.keys()
    assert {name for name in names if name.startswith("DARKROOM_")} <= Settings.variables()


@of_both
def test_secrets_come_from_the_secret_and_gpu_nodes_have_none(manifest: Manifest) -> None:
    """Workers are handed the settings that they are made from."""
    groups = node_groups(manifest)
    env = variables_of(groups.get("edge", groups["head"]))
    for name in ("DARKROOM_SECRET", "DARKROOM_NATS_URL", "DARKROOM_DATABASE_URL"):
        assert env[name]["valueFrom"]["secretKeyRef"]["name"] == "darkroom"
    assert SETTINGS.keys() & Settings.secret_variables() == set()
    for group in groups.values():
        if gpu_limit(group):
            assert variables_of(group).keys() & Settings.variables() == set()


@of_both
def test_gpu_nodes_start_from_none_and_are_as_many_as_darkroom_asks_for(
    manifest: Manifest,
) -> None:
    groups = node_groups(manifest)
    env = SETTINGS | {
        name: each.get("value") for name, each in variables_of(groups["head"]).items()
    }
    gpus = [group for group in groups.values() if gpu_limit(group)]
    assert [group["minReplicas"] for group in gpus] == [0] * len(gpus)
    assert int(env["DARKROOM_MAX_WORKERS"]) == sum(group["maxReplicas"] for group in gpus)
    assert ray_cluster_spec(manifest)["enableInTreeAutoscaling"] is True
    # Applying the file again leaves the autoscaler's number of nodes alone.
    workers = ray_cluster_spec(manifest)["workerGroupSpecs"]
    assert all("replicas" not in group for group in workers)


@of_both
def test_every_node_that_needs_models_reads_the_same(manifest: Manifest) -> None:
    groups = node_groups(manifest)
    if "edge" in groups:
        del groups["head"]
    for group in groups.values():
        mounts = {mount["mountPath"]: mount for mount in container(group)["volumeMounts"]}
        assert mounts[SETTINGS["DARKROOM_MODELS_DIR"]]["readOnly"] is True


@of_both
def test_ray_is_the_version_of_the_constraints(manifest: Manifest) -> None:
    assert ray_cluster_spec(manifest)["rayVersion"] == pins()["ray"]


def test_roles_and_replicas_fit_on_nodes_without_gpus() -> None:
    offers = {name for name, group in GROUPS.items() if CPU_RESOURCE in group.get("resources", {})}
    assert offers == {"edge"}
    assert gpu_limit(GROUPS["edge"]) == 0
    for name, group in node_groups(CLUSTER).items():
        # `ray start --resources=` receives this after a shell has taken the outer quotes away.
        quoted = group["rayStartParams"].get("resources", '"{}"')
        assert (CPU_RESOURCE in json.loads(json.loads(quoted))) == (name == "head")
        assert gpu_limit(group) == (name == "gpu")


# The application.


def test_the_application_and_its_deployments_are_those_of_the_code(
    application: ServeApplicationSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DARKROOM_SECRET", "x" * 32)
    assert application.import_path == f"{build.__module__}:{build.__name__}"
    assert application.route_prefix == "/"
    ingress = build({})
    names = {ingress._bound_deployment.name}
    names |= {each._bound_deployment.name for each in ingress._bound_deployment.init_args}
    assert {deployment.name for deployment in application.deployments} == names
    for deployment in application.deployments:
        assert deployment.ray_actor_options.resources == CPU_NODE


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
    spread = GROUPS["edge"]["template"]["spec"]["topologySpreadConstraints"]
    hard = [each for each in spread if each["whenUnsatisfiable"] == "DoNotSchedule"]
    assert [each["topologyKey"] for each in hard] == ["kubernetes.io/hostname"]
    labels = GROUPS["edge"]["template"]["metadata"]["labels"]
    assert all(each["labelSelector"]["matchLabels"].items() <= labels.items() for each in spread)


# The head.


def test_head_offers_nothing_that_an_actor_asks_for_and_takes_no_request() -> None:
    head = GROUPS["head"]
    assert head["rayStartParams"]["num-cpus"] == "0"
    assert head["rayStartParams"]["num-gpus"] == "0"
    assert "resources" not in head["rayStartParams"]
    assert "resources" not in head
    assert SERVICE["spec"]["excludeHeadPodFromServeSvc"] is True


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


# GPU nodes of two kinds.


def test_kinds_of_gpu_nodes_differ_in_their_machine_and_one_is_preferred() -> None:
    def shared(group: Manifest) -> Any:
        spec = {**group["template"]["spec"], "nodeSelector": None}
        return {**group["template"], "spec": spec}

    first, second = GPU_GROUPS.values()
    assert shared(first) == shared(second)
    machine, other = (each["template"]["spec"]["nodeSelector"] for each in (first, second))
    assert machine != other
    assert first["priority"] != second["priority"]


@pytest.mark.parametrize("name", GPU_GROUPS)
def test_gpu_nodes_go_soon_and_have_no_secret_and_no_setting(name: str) -> None:
    group = GPU_GROUPS[name]
    assert 0 < group["idleTimeoutSeconds"] <= 60
    assert gpu_limit(group) == int(SETTINGS["DARKROOM_WORKER_GPUS"])
    assert variables_of(group) == {}
    assert config_maps(group) == {"darkroom-ray"}
    volumes = group["template"]["spec"]["volumes"]
    secrets = [each["secret"] for each in volumes if "secret" in each]
    assert secrets == [{"secretName": "nats-tls", "items": [{"key": "ca.crt", "path": "ca.crt"}]}]


# Settings.


def test_settings_load(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    settings = Settings.load()
    assert settings.log.replicas == one("nats/stateful-set.yaml", "StatefulSet")["spec"]["replicas"]


@pytest.mark.parametrize("name", ["edge", *GPU_GROUPS])
def test_nodes_have_the_authority_where_the_settings_say(name: str) -> None:
    mounts = {each["mountPath"]: each for each in container(GROUPS[name])["volumeMounts"]}
    folder, _, file = SETTINGS["DARKROOM_NATS_CA_FILE"].rpartition("/")
    volumes = {each["name"]: each for each in GROUPS[name]["template"]["spec"]["volumes"]}
    source = volumes[mounts[folder]["name"]]["secret"]
    assert source["items"] == [{"key": "ca.crt", "path": file}]
