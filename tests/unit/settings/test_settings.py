"""Settings: what is read from the environment, and what is said of a wrong value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from settings.__main__ import markdown
from settings.callbacks import CallbackSettings
from settings.log import LogFormat, LogSettings
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


def test_hosts_are_a_list_in_lower_case() -> None:
    hosts = Settings.load(key_callback_hosts="*.Example.com, 2001:DB8::1").keys.callback_hosts
    assert hosts == ("*.example.com", "2001:db8::1")


def test_every_wrong_value_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARKROOM_JOB_TIMEOUT_S", "0")
    monkeypatch.setenv("DARKROOM_KEY_CALLBACK_HOSTS", "*,https://example.com")
    arguments: dict[str, Any] = {"worker_idle_s": -1, "port": "http"}
    arguments |= {"data_dir": None, "models_dir": 7}
    with pytest.raises(ValidationError) as refusal:
        Settings.load(**arguments)
    named = {error["loc"]: error["type"] for error in refusal.value.errors()}
    assert named == {
        ("job_timeout_s",): "greater_than",
        ("worker_idle_s",): "greater_than",
        ("key_callback_hosts", 1): "string_pattern_mismatch",
        ("port",): "int_parsing",
        ("data_dir",): "path_type",
        ("models_dir",): "path_type",
    }


@pytest.mark.parametrize("name", ["callback_allow_networks", "callback_deny_networks"])
@pytest.mark.parametrize("text", ["10.0.0.1/8", "fe80::1/64", "here"])
def test_a_wrong_network_is_told_in_plain_words(name: str, text: str) -> None:
    """The first two have host bits."""
    arguments: dict[str, Any] = {name: f"10.0.0.0/8,{text}"}
    with pytest.raises(ValidationError) as raised:
        Settings.load(**arguments)
    [error] = raised.value.errors()
    assert error["loc"] == (name, 1)
    assert "write a network as 10.0.0.0/8 or fd00::/8" in error["msg"]


def test_a_page_of_a_protocol_that_is_off_is_refused() -> None:
    with pytest.raises(ValidationError) as refusal:
        Settings.load(root_page="comfyui", adapter_comfyui=False)
    assert Settings.wrong_values(refusal.value) == [
        "DARKROOM_ROOT_PAGE is 'comfyui': comfyui needs DARKROOM_ADAPTER_COMFYUI to be true"
    ]


def test_an_argument_may_be_in_any_case() -> None:
    assert Settings.load(PORT="9001", Key_Burst=3).http.port == 9001
    assert Settings.load(cls=1, nobody=1) == Settings.load()


def test_a_variable_without_the_prefix_of_its_group_has_no_second_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in ("DARKROOM_LOG_NATS_URL", "NATS_URL"):
        monkeypatch.setenv(variable, "nats://nats:4222")
    assert LogSettings().nats_url is None


def test_a_group_knows_its_own_names_alone() -> None:
    arguments: dict[str, Any] = {"callback_timeout_s": 1.0}
    with pytest.raises(ValidationError, match="callback_timeout_s"):
        CallbackSettings(**arguments)


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


def test_the_models_are_those_of_the_install_unless_a_folder_is_given() -> None:
    install = Settings.load(comfyui_dir="ComfyUI").with_absolute_folders()
    assert install.comfyui.dir == Path.cwd() / "ComfyUI"
    assert install.stores.models_dir == Path.cwd() / "ComfyUI/models"
    given = Settings.load(comfyui_dir="ComfyUI", models_dir="models")
    assert given.stores.models_dir == Path("models")


def test_arguments_of_comfyui_are_split_as_in_a_shell() -> None:
    settings = Settings.load(comfyui_args="--reserve-vram 2 '--extra-model-paths-config=a b'")
    expected = ("--reserve-vram", "2", "--extra-model-paths-config=a b")
    assert settings.comfyui.args == expected
    with pytest.raises(ValidationError, match="No closing quotation"):
        Settings.load(comfyui_args="'a")


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
    " is a value that is not shown: write the proxy as "
    "http://host:port or http://user:password@host:port"
)


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("PORT", "http", " is 'http': a whole number is required"),
        ("PORT", "0", " is '0': 1 or more is required"),
        ("DOCS", "perhaps", " is 'perhaps': true or false is required"),
        ("IMAGE_URL_TTL_S", "-1", " is '-1': 0 or more is required"),
        ("OWNER_BURST", "0", " is '0': more than 0 is required"),
        ("MAX_COST", "inf", " is 'inf': a finite number is required"),
        ("CALLBACK_PORTS", "80,x", ", item 2 is 'x': a whole number is required"),
        ("KEY_IMAGE_FORMAT", "f{8}", " is 'f{8}': 'png', 'webp' or 'jpeg' is required"),
        ("CALLBACK_PROXY", "http://a:password@", _PROXY_LINE),
    ],
)
def test_a_wrong_value_is_told_with_its_variable_and_what_is_wanted(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, line: str
) -> None:
    monkeypatch.setenv(f"DARKROOM_{name}", value)
    with pytest.raises(ValidationError) as refusal:
        Settings.load()
    assert Settings.wrong_values(refusal.value) == [f"DARKROOM_{name}{line}"]


def test_no_wrong_value_is_told_in_the_words_of_the_validator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in Settings.variables():
        monkeypatch.setenv(variable, "?{x}")
    with pytest.raises(ValidationError) as refusal:
        Settings.load()
    lines = Settings.wrong_values(refusal.value)
    assert len(lines) > 50
    for line in lines:
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


DELAYS_S = (0, 5, 30, 120, 600, 1800, 3600, 10800, 21600, 43200)
VARIABLES: Mapping[str, tuple[object, object]] = {
    "DARKROOM_HOST": ("127.0.0.1", "0.0.0.0"),
    "DARKROOM_PORT": (8000, 8001),
    "DARKROOM_DATA_DIR": (Path("data"), Path("elsewhere")),
    "DARKROOM_MODELS_DIR": (Path("models"), Path("other-models")),
    "DARKROOM_NATS_URL": (None, SecretStr("nats://nats:4222")),
    "DARKROOM_NATS_CA_FILE": (None, Path("/etc/darkroom/nats/ca.crt")),
    "DARKROOM_DATABASE_CONNECTIONS": (10, 3),
    "DARKROOM_DATABASE_URL": (None, SecretStr("postgresql+asyncpg://db/darkroom")),
    "DARKROOM_IMAGES_URL": (None, "s3://images"),
    "DARKROOM_PUBLIC_URL": (None, "https://darkroom.example"),
    "DARKROOM_DOCS": (True, False),
    "DARKROOM_CONSOLE": (True, False),
    "DARKROOM_ADAPTER_COMFYUI": (True, False),
    "DARKROOM_ADAPTER_COMFY_V2": (True, False),
    "DARKROOM_ADAPTER_WEBUI": (True, False),
    "DARKROOM_ADAPTER_MCP": (True, False),
    "DARKROOM_ADAPTER_OPENAI": (True, False),
    "DARKROOM_ROOT_PAGE": ("console", "comfyui"),
    "DARKROOM_CORS_ORIGINS": ((), ("https://app.example", "https://b.example")),
    "DARKROOM_LOG_REQUESTS": (False, True),
    "DARKROOM_IMAGE_URL_TTL_S": (0.0, 3600.5),
    "DARKROOM_SECRET": (None, SecretStr("a secret of the test")),
    "DARKROOM_FETCH_ENABLED": (True, False),
    "DARKROOM_IMAGE_PUT_ENABLED": (True, False),
    "DARKROOM_CALLBACK_ALLOW_NETWORKS": ((), (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))),
    "DARKROOM_CALLBACK_DENY_NETWORKS": ((), (ip_network("8.8.8.0/24"),)),
    "DARKROOM_DEFAULT_CHECKPOINT": (None, "other.safetensors"),
    "DARKROOM_OTLP_URL": (None, "http://127.0.0.1:4318"),
    "DARKROOM_LOG_FORMAT": (LogFormat.TEXT, LogFormat.JSON),
    "DARKROOM_MAX_CONNECTIONS_PER_ADDRESS": (1024, 1027),
    "DARKROOM_MAX_BODY_BYTES": (524_288, 524_291),
    "DARKROOM_MAX_SIDE_PX": (4096, 4099),
    "DARKROOM_MAX_COST": (2000.0, 2001.5),
    "DARKROOM_MAX_UPLOAD_BYTES": (20_971_520, 20_971_523),
    "DARKROOM_KEY_EMBED_METADATA": (True, False),
    "DARKROOM_KEY_IMAGE_FORMAT": ("png", "webp"),
    "DARKROOM_KEY_CALLBACK_HOSTS": (("*",), ("*.example.com", "hooks.example.org")),
    "DARKROOM_OWNER_RATE_PER_S": (100.0, 1.5),
    "DARKROOM_OWNER_BURST": (500, 503),
    "DARKROOM_OWNER_MAX_OPEN_JOBS": (2000, 3),
    "DARKROOM_OWNER_MAX_RUNNING_JOBS": (0, 3),
    "DARKROOM_OWNER_MAX_ENDPOINTS": (2, 5),
    "DARKROOM_OWNER_MAX_ENDPOINT_GPUS": (2.0, 0.5),
    "DARKROOM_OWNER_MAX_ENDPOINT_CPUS": (8.0, 3.5),
    "DARKROOM_OWNER_MAY_KEEP_WORKERS": (False, True),
    "DARKROOM_OWNER_MAX_LOG_BYTES": (536_870_912, 536_870_915),
    "DARKROOM_OWNER_MAX_RESULT_BYTES": (21_474_836_480, 21_474_836_483),
    "DARKROOM_OWNER_MAX_UPLOAD_BYTES": (2_147_483_648, 2_147_483_651),
    "DARKROOM_OWNER_SLOTS_KEPT_FREE": (1, 2),
    "DARKROOM_LOG_MAX_BYTES": (2_147_483_648, 2_147_483_651),
    "DARKROOM_LOG_HOT_S": (3600.0, 3601.5),
    "DARKROOM_LOG_REPLICAS": (1, 4),
    "DARKROOM_JOB_TIMEOUT_S": (3600.0, 3601.5),
    "DARKROOM_ENDPOINTS_FILE": (None, Path("endpoints.yaml")),
    "DARKROOM_COMFYUI_DIR": (None, Path("ComfyUI")),
    "DARKROOM_COMFYUI_PYTHON": (None, Path("/opt/conda/bin/python")),
    "DARKROOM_COMFYUI_ARGS": ((), ("--lowvram",)),
    "DARKROOM_MAX_ATTEMPTS": (3, 6),
    "DARKROOM_STEP_TIMEOUT_S": (120.0, 121.5),
    "DARKROOM_MIN_WORKERS": (1, 4),
    "DARKROOM_MAX_WORKERS": (1, 4),
    "DARKROOM_WORKER_GPUS": (None, 0.5),
    "DARKROOM_WORKER_CPUS": (1.0, 2.5),
    "DARKROOM_JOBS_PER_WORKER": (0, 7),
    "DARKROOM_WORKER_IDLE_S": (300.0, 301.5),
    "DARKROOM_WORKERS_KEPT_S": (60.0, 61.25),
    "DARKROOM_COMPATIBILITY": ("webui", "comfyui"),
    "DARKROOM_MODEL_CACHE_BYTES": (None, 8_589_934_595),
    "DARKROOM_ENGINE_MEMORY_BYTES": (None, 1),
    "DARKROOM_RETENTION_DAYS": (30.0, 31.5),
    "DARKROOM_UPLOAD_RETENTION_DAYS": (30.0, 31.5),
    "DARKROOM_CALLBACK_REQUIRE_HTTPS": (False, True),
    "DARKROOM_CALLBACK_PORTS": ((), (443, 8443)),
    "DARKROOM_CALLBACK_DELAYS_S": (DELAYS_S, (0.0, 1.5)),
    "DARKROOM_CALLBACK_PROXY": (None, SecretStr("http://proxy:3128")),
    "DARKROOM_HTTP_REPLICAS": (None, 4),
    "DARKROOM_RAY_NUM_GPUS": (None, 2),
}
"""Default and another value of every variable; operators depend on the names."""
FOLLOW = {"DARKROOM_COMFYUI_DIR": {"DARKROOM_MODELS_DIR": Path("ComfyUI/models")}}
"""The other settings that follow from a variable, if they are not set."""


def by_variable(settings: Settings) -> dict[str, object]:
    """The values of all settings."""
    return {
        variable: getattr(group, field)
        for _, group in settings
        for variable, field in group.variables().items()
    }


def written(value: Any) -> str:
    """As an operator writes it."""
    match value:
        case tuple():
            return ",".join(map(str, value))
        case SecretStr():
            return value.get_secret_value()
        case _:
            return str(value)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


def test_each_variable_has_its_default_is_read_and_changes_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    defaults = {variable: default for variable, (default, _) in VARIABLES.items()}
    assert by_variable(Settings.load()) == defaults
    for variable, (_, other) in VARIABLES.items():
        with monkeypatch.context() as environment:
            environment.setenv(variable, written(other))
            following = FOLLOW.get(variable, {})
            assert by_variable(Settings.load()) == defaults | following | {variable: other}


def test_a_serve_argument_goes_before_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, (_, other) in VARIABLES.items():
        monkeypatch.setenv(variable, written(other))
    defaults = {variable: default for variable, (default, _) in VARIABLES.items()}
    arguments: dict[str, Any] = {
        variable.removeprefix("DARKROOM_"): default for variable, default in defaults.items()
    }
    assert by_variable(Settings.load(**arguments)) == defaults
