"""Settings: what is read from the environment, and what the table says of it."""

from __future__ import annotations

import re
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from settings.__main__ import markdown
from settings.callbacks import CallbackSettings
from settings.log import LogSettings
from settings.settings import Settings, forget_secrets
from settings.stores import StoreSettings


def test_every_setting_says_in_a_sentence_what_it_does() -> None:
    for line in markdown().splitlines()[2:]:
        meaning = line.split(" | ")[2].removesuffix(" |")
        assert re.fullmatch(r"[A-Z][^|]{20,}\.", meaning), line


@pytest.mark.parametrize("text", ['["127.0.0.0/8", "10.0.0.0/8"]', "127.0.0.0/8,10.0.0.0/8"])
def test_networks_are_a_json_list_or_commas(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("DARKROOM_CALLBACK_ALLOW_NETWORKS", text)
    expected = (ip_network("127.0.0.0/8"), ip_network("10.0.0.0/8"))
    assert Settings.load().callbacks.allow_networks == expected


def test_hosts_are_a_list_in_lower_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "DARKROOM_KEY_CALLBACK_HOSTS", "*.Example.com, hooks.example.org,2001:DB8::1"
    )
    expected = ("*.example.com", "hooks.example.org", "2001:db8::1")
    assert Settings.load().keys.callback_hosts == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "0"),
        ("LEASE_S", "-1"),
        ("LOG_FULL_RATIO", "1.5"),
        ("KEY_CACHE_S", "10"),
        ("KEY_ROTATION_GRACE_S", "inf"),
        ("KEY_RATE_PER_S", "nan"),
        ("KEY_CALLBACK_HOSTS", "*.example.com,https://example.com"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"DARKROOM_{name}", value)
    with pytest.raises(ValidationError, match=name.lower()):
        Settings.load()


def test_every_wrong_value_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARKROOM_APPEND_TIMEOUT_S", "0")
    monkeypatch.setenv("DARKROOM_KEY_CALLBACK_HOSTS", "*,https://example.com")
    arguments: dict[str, Any] = {"callback_timeout_s": -1, "port": "http"}
    with pytest.raises(ValidationError) as refusal:
        Settings.load(**arguments)
    named = {error["loc"]: error["type"] for error in refusal.value.errors()}
    assert named == {
        ("append_timeout_s",): "greater_than",
        ("callback_timeout_s",): "greater_than",
        ("key_callback_hosts", 1): "string_pattern_mismatch",
        ("port",): "int_parsing",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("callback_allow_networks", "10.0.0.1/8"),  # host bits are set
        ("callback_allow_networks", "fe80::1/64"),
        ("data_dir", None),
        ("models_dir", 7),
    ],
)
def test_a_wrong_value_of_any_type_is_named(name: str, value: Any) -> None:
    with pytest.raises(ValidationError) as raised:
        Settings.load(**{name: value})
    assert {error["loc"][0] for error in raised.value.errors()} == {name}


@pytest.mark.parametrize("text", ["10.0.0.1/8", "fe80::1/64", "here"])
def test_a_wrong_network_is_told_in_plain_words(text: str) -> None:
    arguments: dict[str, Any] = {"callback_deny_networks": f"10.0.0.0/8,{text}"}
    with pytest.raises(ValidationError) as raised:
        Settings.load(**arguments)
    [error] = raised.value.errors()
    assert error["loc"] == ("callback_deny_networks", 1)
    assert "write a network as 10.0.0.0/8 or fd00::/8" in error["msg"]


def test_a_page_of_a_protocol_that_is_off_is_refused() -> None:
    with pytest.raises(ValidationError) as refusal:
        Settings.load(root_page="comfyui", adapter_comfyui=False)
    assert Settings.wrong_values(refusal.value) == [
        "DARKROOM_ROOT_PAGE is 'comfyui': comfyui needs DARKROOM_ADAPTER_COMFYUI to be true"
    ]


def test_an_argument_may_be_in_any_case() -> None:
    assert Settings.load(PORT="9001", Key_Burst=3).http.port == 9001
    assert Settings.load(cls=1).http.port == Settings.load().http.port


def test_a_variable_without_the_prefix_of_its_group_has_no_second_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DARKROOM_LOG_APPEND_TIMEOUT_S", "7")
    monkeypatch.setenv("APPEND_TIMEOUT_S", "7")
    assert LogSettings().append_timeout_s == 10


def test_a_group_knows_its_own_names_alone() -> None:
    arguments: dict[str, Any] = {"callback_timeout_s": 1.0}
    with pytest.raises(ValidationError, match="callback_timeout_s"):
        CallbackSettings(**arguments)


def test_a_name_that_is_none_of_ours_is_passed_over() -> None:
    arguments: dict[str, Any] = {"nobody": 1}
    assert Settings.load(**arguments) == Settings.load()


@pytest.mark.parametrize(
    "url",
    [
        "proxy:3128",
        "https://proxy:3128",
        "socks5://proxy:1080",
        "http://proxy",
        "http://proxy:0",
        "http://proxy:3128/path",
        "http://user:pass word@proxy:3128",
        "http://a@b@proxy:3128",
    ],
)
def test_a_proxy_that_could_not_be_asked_is_refused_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("DARKROOM_CALLBACK_PROXY", url)
    with pytest.raises(ValidationError, match="http://host:port") as refusal:
        Settings.load()
    assert url not in str(refusal.value)


def test_a_proxy_may_have_a_login_which_is_not_shown() -> None:
    settings = CallbackSettings(proxy="http://user:a-password@proxy:3128")  # type: ignore[arg-type]  # as the environment gives it
    assert "a-password" not in repr(settings)


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="DARKROOM_SECRET"):
        _ = StoreSettings(secret="short").secret_bytes  # type: ignore[arg-type]  # as the environment gives it


def test_no_secret_is_shown() -> None:
    passwords = {
        "secret": "a-very-long-secret",
        "database_url": "postgresql+asyncpg://darkroom:database-password@db/darkroom",
        "nats_url": "nats://service:nats-password@nats:4222",
        "callback_proxy": "http://user:proxy-password@proxy:3128",
    }
    settings = Settings.load(**passwords)
    shown = f"{settings!r} {settings} {settings.model_dump_json()}"
    assert [name for name, value in passwords.items() if value in shown] == []
    assert "password" not in shown
    assert settings.stores.effective_database_url == passwords["database_url"]


def test_folders_are_the_same_for_a_process_that_works_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings.load(data_dir="data", models_dir="/models").with_absolute_folders()
    expected = (Path.cwd() / "data", Path("/models"))
    images_url = settings.stores.effective_images_url
    monkeypatch.chdir(tmp_path)
    assert (settings.stores.data_dir, settings.stores.models_dir) == expected
    assert settings.stores.effective_images_url == images_url


@pytest.mark.parametrize("name", ["secret", "database_url", "nats_url", "callback_proxy"])
def test_a_wrong_value_of_a_secret_is_not_repeated(name: str) -> None:
    arguments: dict[str, Any] = {name: ["a-password"]}
    with pytest.raises(ValidationError, match=name) as refusal:
        Settings.load(**arguments)
    assert "a-password" not in f"{refusal.value} {refusal.value!r} {refusal.value.__cause__}"


def test_the_variables_of_secrets_are_taken_out_in_any_case() -> None:
    environment = {
        "DARKROOM_SECRET": "1",
        "darkroom_database_url": "2",
        "DARKROOM_NATS_URL": "3",
        "DARKROOM_CALLBACK_PROXY": "4",
        "DARKROOM_PORT": "5",
        "PATH": "6",
    }
    forget_secrets(environment)
    assert environment == {"DARKROOM_PORT": "5", "PATH": "6"}


_PROXY_LINE = (
    "DARKROOM_CALLBACK_PROXY is a value that is not shown: write the proxy as "
    "http://host:port or http://user:password@host:port"
)


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("PORT", "http", "DARKROOM_PORT is 'http': a whole number is wanted"),
        ("PORT", "0", "DARKROOM_PORT is '0': 1 or more is wanted"),
        ("DOCS", "perhaps", "DARKROOM_DOCS is 'perhaps': true or false is wanted"),
        ("LOG_FULL_RATIO", "1.5", "DARKROOM_LOG_FULL_RATIO is '1.5': less than 1 is wanted"),
        ("KEY_RATE_PER_S", "inf", "DARKROOM_KEY_RATE_PER_S is 'inf': a finite number is wanted"),
        (
            "CALLBACK_PORTS",
            "80,x",
            "DARKROOM_CALLBACK_PORTS, item 2 is 'x': a whole number is wanted",
        ),
        (
            "PRECISION",
            "f{8}",
            "DARKROOM_PRECISION is 'f{8}': 'auto', 'float32', 'float16' or 'bfloat16' is wanted",
        ),
        (
            "CALLBACK_PROXY",
            "http://a:password@",
            _PROXY_LINE,
        ),
    ],
)
def test_a_wrong_value_is_told_with_its_variable_and_what_is_wanted(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, line: str
) -> None:
    monkeypatch.setenv(f"DARKROOM_{name}", value)
    with pytest.raises(ValidationError) as refusal:
        Settings.load()
    assert Settings.wrong_values(refusal.value) == [line]


@pytest.mark.parametrize("variable", sorted(Settings.variables()))
def test_no_wrong_value_is_told_in_the_words_of_the_validator(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "?{x}")
    try:
        Settings.load()
    except ValidationError as error:
        [line] = Settings.wrong_values(error)
        assert not re.search(r"Input should|<class|pydantic|Value error", line)


def test_a_variable_that_is_no_setting_is_told_with_the_nearest() -> None:
    environment = [
        "DARKROOM_PROT",
        "darkroom_callback_alow_networks",
        "DARKROOM_COLOUR",
        "DARKROOM_PORT",
        "darkroom_port",
        "DARKROOM_API_KEY",
        "PATH",
        # By which Kubernetes tells of a service named `darkroom` or `darkroom-head-svc`.
        "DARKROOM_SERVICE_HOST",
        "DARKROOM_HEAD_SVC_SERVICE_PORT_DASHBOARD",
        "DARKROOM_HEAD_SVC_PORT_8265_TCP_ADDR",
        "DARKROOM_HEAD_SVC_PORT",
    ]
    assert Settings.unknown_variables(environment) == {
        "DARKROOM_PROT": "DARKROOM_PORT",
        "darkroom_callback_alow_networks": "DARKROOM_CALLBACK_ALLOW_NETWORKS",
        "DARKROOM_COLOUR": None,
    }
