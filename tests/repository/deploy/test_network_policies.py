"""Who may talk to whom on Kubernetes: nobody, but for what is listed here."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest

from settings.callbacks import CallbackSettings
from tests.support.deploy.manifests import (
    OVERLAYS,
    Manifest,
    find,
    node_groups,
    one,
    read,
    rendered,
)

POLICIES = {
    policy["metadata"]["name"]: policy["spec"]
    for path in (
        "base/network-policies.yaml",
        "nats/network-policy.yaml",
        "postgres/network-policy.yaml",
        "redis/network-policy.yaml",
        "monitoring/network-policy.yaml",
        "comfyui/network-policy.yaml",
    )
    for policy in read(path)
}
RAY_GROUPS = [
    *node_groups(one("base/ray-service.yaml", "RayService")).values(),
    read("comfyui/worker-group.yaml")[0][0]["value"],
]
PODS = {
    labels["app.kubernetes.io/component"]: labels
    for labels in (group["template"]["metadata"]["labels"] for group in RAY_GROUPS)
} | {
    name: one(f"{name}/stateful-set.yaml", "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    for name in ("nats", "redis")
}
PODS |= {
    "postgres": {"app.kubernetes.io/name": "postgresql", "cnpg.io/cluster": "postgres"},
    "event-reader": {"app.kubernetes.io/component": "event-reader"},
}


def selects(selector: Manifest, labels: dict[str, str]) -> bool:
    wanted = selector.get("matchLabels", {}).items() <= labels.items()
    return wanted and all(
        labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", ())
    )


def ports_between(source: str, target: str) -> set[int | str]:
    """The ports of `target` that both its ingress and the egress of `source` let through."""
    out = _ports("egress", "to", PODS[source], PODS[target])
    into = _ports("ingress", "from", PODS[target], PODS[source])
    if "any" in out and "any" in into:
        return {"any"}
    return out if "any" in into else into if "any" in out else out & into


def _ports(way: str, peer: str, own: dict[str, str], other: dict[str, str]) -> set[int | str]:
    found: set[int | str] = set()
    for policy in POLICIES.values():
        if selects(policy["podSelector"], own):
            for rule in policy.get(way, ()):
                if any(_is_pod(each, other) for each in rule[peer]):
                    found |= {port["port"] for port in rule.get("ports", ())} or {"any"}
    return found


def _is_pod(peer: Manifest, labels: dict[str, str]) -> bool:
    """Whether it is a pod of this namespace."""
    same_namespace = "namespaceSelector" not in peer and "podSelector" in peer
    return same_namespace and selects(peer["podSelector"], labels)


@pytest.mark.parametrize(
    ("source", "target", "ports"),
    [
        ("edge", "nats", {4222}),
        ("gpu", "nats", {4222}),
        ("comfyui", "nats", {4222}),
        ("comfyui", "postgres", set()),
        ("comfyui", "redis", set()),
        ("comfyui", "head", {"any"}),
        ("head", "nats", set()),
        ("event-reader", "nats", {4222}),
        ("event-reader", "postgres", set()),
        ("event-reader", "edge", set()),
        ("edge", "postgres", {5432}),
        ("gpu", "postgres", set()),
        ("head", "postgres", set()),
        ("head", "redis", {6379}),
        ("edge", "redis", set()),
        ("gpu", "redis", set()),
        ("nats", "nats", {6222}),
        ("nats", "postgres", set()),
        ("nats", "edge", set()),
        ("postgres", "postgres", {5432, 8000}),
        ("postgres", "nats", set()),
        ("redis", "head", set()),
        ("edge", "gpu", {"any"}),
        ("gpu", "head", {"any"}),
    ],
)
def test_pods_reach_what_they_need_and_nothing_else(
    source: str, target: str, ports: set[int | str]
) -> None:
    assert ports_between(source, target) == ports


def test_callers_come_by_the_ingress_to_http_alone() -> None:
    rule = POLICIES["http"]["ingress"][0]
    assert selects(POLICIES["http"]["podSelector"], PODS["edge"])
    assert not selects(POLICIES["http"]["podSelector"], PODS["head"])
    assert [port["port"] for port in rule["ports"]] == [8000]


def test_the_dashboard_is_reached_by_the_operator_alone_from_outside() -> None:
    """Who reaches it with the token runs code."""
    namespaces = [
        peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
        for policy in POLICIES.values()
        for rule in policy.get("ingress", ())
        if {"protocol": "TCP", "port": 8265} in rule.get("ports", ())
        for peer in rule["from"]
    ]
    assert namespaces == ["kuberay-system"]


@pytest.mark.parametrize("name", ["edge", "gpu"])
@pytest.mark.parametrize(
    "address", ["10.1.2.3", "172.20.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "fd00::1"]
)
def test_no_callback_or_image_goes_to_a_private_address(name: str, address: str) -> None:
    blocks = [
        peer["ipBlock"]
        for rule in POLICIES[name]["egress"]
        for peer in rule["to"]
        if "ipBlock" in peer
    ]
    assert blocks
    assert not any(_contains(block, address) for block in blocks)
    assert any(_contains(block, "93.184.215.14") for block in blocks)


def test_nodes_with_comfyui_reach_no_address_but_those_of_the_overlay() -> None:
    rules = [
        rule
        for policy in POLICIES.values()
        if selects(policy["podSelector"], PODS["comfyui"])
        for rule in policy.get("egress", ())
    ]
    assert rules
    assert [rule for rule in rules if any("ipBlock" in peer for peer in rule["to"])] == []
    policy = find(rendered("comfyui"), "NetworkPolicy", "comfyui")["spec"]
    blocks = [
        peer["ipBlock"] for rule in policy["egress"] for peer in rule["to"] if "ipBlock" in peer
    ]
    assert blocks
    assert not any(_contains(block, "93.184.215.14") for block in blocks)


def test_callbacks_may_go_to_the_ports_that_the_settings_allow() -> None:
    assert CallbackSettings().ports == ()  # 80, 443 and all from 1024 up
    ports = POLICIES["edge"]["egress"][-1]["ports"]
    assert [(port["port"], port.get("endPort")) for port in ports] == [
        (80, None),
        (443, None),
        (1024, 65535),
    ]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_keeps_what_denies_the_rest(overlay: str) -> None:
    names = {
        each["metadata"]["name"] for each in rendered(overlay) if each["kind"] == "NetworkPolicy"
    }
    assert {"deny-all", "edge", "gpu", "head", "http", "nats", "postgres", "ray", "redis"} <= names


def _contains(block: dict[str, Any], address: str) -> bool:
    ip = ipaddress.ip_address(address)
    excluded = any(ip in ipaddress.ip_network(each) for each in block.get("except", ()))
    return ip in ipaddress.ip_network(block["cidr"]) and not excluded
