"""The environment variables: their names, their defaults, and that each one is read."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from settings.log import LogFormat
from settings.settings import Settings

VARIABLES: Mapping[str, tuple[object, object]] = {
    "DARKROOM_HOST": ("127.0.0.1", "0.0.0.0"),
    "DARKROOM_PORT": (8000, 8001),
    "DARKROOM_DATA_DIR": (Path("data"), Path("elsewhere")),
    "DARKROOM_MODELS_DIR": (Path("models"), Path("other-models")),
    "DARKROOM_MODELS_TIMEOUT_S": (2.0, 3.5),
    "DARKROOM_NATS_URL": (None, SecretStr("nats://nats:4222")),
    "DARKROOM_NATS_CA_FILE": (None, Path("/etc/darkroom/nats/ca.crt")),
    "DARKROOM_DATABASE_CONNECTIONS": (10, 3),
    "DARKROOM_DATABASE_URL": (None, SecretStr("postgresql+asyncpg://db/darkroom")),
    "DARKROOM_IMAGES_URL": (None, "s3://images"),
    "DARKROOM_IMAGES_RETRY_S": (10.0, 3.5),
    "DARKROOM_LOG_FILE_BYTES": (10 * 1024**2, 4096),
    "DARKROOM_LOG_FILES": (5, 2),
    "DARKROOM_PUBLIC_URL": (None, "https://darkroom.example"),
    "DARKROOM_DOCS": (True, False),
    "DARKROOM_CONSOLE": (True, False),
    "DARKROOM_ADAPTER_COMFYUI": (True, False),
    "DARKROOM_ADAPTER_COMFY_V2": (True, False),
    "DARKROOM_ADAPTER_WEBUI": (True, False),
    "DARKROOM_ADAPTER_OPENAI": (True, False),
    "DARKROOM_ROOT_PAGE": ("console", "comfyui"),
    "DARKROOM_ADAPTER_MAX_BODY_BYTES": (32 * 1024**2, 1024**2),
    "DARKROOM_ADAPTER_MAX_WAIT_S": (600.0, 3.5),
    "DARKROOM_ADAPTER_MAX_USER_FILES": (1000, 7),
    "DARKROOM_ADAPTER_MAX_USER_FILE_BYTES": (2 * 1024**2, 1024),
    "DARKROOM_ADAPTER_MAX_USER_BYTES": (16 * 1024**2, 4096),
    "DARKROOM_CORS_ORIGINS": ((), ("https://app.example", "https://b.example")),
    "DARKROOM_LOG_REQUESTS": (False, True),
    "DARKROOM_IMAGE_URL_TTL_S": (0.0, 3600.5),
    "DARKROOM_SECRET": (None, SecretStr("a secret of the test")),
    "DARKROOM_FETCH_ENABLED": (True, False),
    "DARKROOM_FETCH_TIMEOUT_S": (20.0, 21.5),
    "DARKROOM_FETCH_CONNECT_TIMEOUT_S": (3.0, 4.5),
    "DARKROOM_FETCH_MAX_REDIRECTS": (3, 6),
    "DARKROOM_FETCH_IN_FLIGHT": (8, 11),
    "DARKROOM_FETCH_PER_OWNER": (4, 7),
    "DARKROOM_IMAGE_PUT_ENABLED": (True, False),
    "DARKROOM_IMAGE_PUT_MAX_URLS": (32, 35),
    "DARKROOM_IMAGE_PUT_MAX_BYTES": (128 * 1024**2, 1003),
    "DARKROOM_IMAGE_PUT_TIMEOUT_S": (60.0, 61.5),
    "DARKROOM_IMAGE_PUT_DELAYS_S": ((0, 5, 30, 120), (0.0, 1.5)),
    "DARKROOM_IMAGE_PUT_LONGEST_S": (600.0, 601.5),
    "DARKROOM_IMAGE_PUT_IN_FLIGHT": (16, 19),
    "DARKROOM_CALLBACK_ALLOW_NETWORKS": ((), (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))),
    "DARKROOM_CALLBACK_DENY_NETWORKS": ((), (ip_network("8.8.8.0/24"),)),
    "DARKROOM_DEFAULT_CHECKPOINT": (None, "other.safetensors"),
    "DARKROOM_METRICS_TIMEOUT_S": (2.0, 3.5),
    "DARKROOM_METRICS_ENDPOINTS": (50, 53),
    "DARKROOM_OTLP_URL": (None, "http://127.0.0.1:4318"),
    "DARKROOM_OTLP_SPANS": (10_000, 10_003),
    "DARKROOM_LOG_FORMAT": (LogFormat.TEXT, LogFormat.JSON),
    "DARKROOM_MAX_CONNECTIONS": (8192, 8195),
    "DARKROOM_MAX_CONNECTIONS_PER_ADDRESS": (1024, 1027),
    "DARKROOM_HEADER_TIMEOUT_S": (10.0, 11.5),
    "DARKROOM_IDLE_TIMEOUT_S": (30.0, 31.5),
    "DARKROOM_SILENCE_TIMEOUT_S": (30.0, 31.5),
    "DARKROOM_MAX_BODY_BYTES": (524_288, 524_291),
    "DARKROOM_MAX_EXTRA_DATA_BYTES": (64 * 1024, 1003),
    "DARKROOM_MAX_NODES": (1000, 1003),
    "DARKROOM_MAX_NODE_ID_CHARS": (128, 129),
    "DARKROOM_MAX_PROMPT_CHARS": (32_768, 32_771),
    "DARKROOM_MAX_SENT_IMAGES": (16, 19),
    "DARKROOM_MAX_REQUEST_CHARS": (131_072, 131_073),
    "DARKROOM_MAX_SIDE_PX": (4096, 4099),
    "DARKROOM_MAX_BATCH": (16, 19),
    "DARKROOM_MAX_COST": (2000.0, 2001.5),
    "DARKROOM_MAX_LIVE_BYTES": (2_147_483_648, 2_147_483_651),
    "DARKROOM_MAX_CONDITIONING_ROWS": (64, 67),
    "DARKROOM_MAX_TOKENS": (65_536, 65_539),
    "DARKROOM_MAX_METADATA_BYTES": (64 * 1024**2, 1004),
    "DARKROOM_MAX_MERGED_MODELS": (4, 7),
    "DARKROOM_MAX_OUTPUTS": (256, 259),
    "DARKROOM_MAX_WAIT_S": (60.0, 61.5),
    "DARKROOM_MAX_STREAMS": (2000, 2003),
    "DARKROOM_STREAM_KEEP_ALIVE_S": (10.0, 11.5),
    "DARKROOM_STREAM_SEND_TIMEOUT_S": (10.0, 11.5),
    "DARKROOM_STREAM_BUFFER_EVENTS": (500, 503),
    "DARKROOM_STREAM_ARCHIVE_READS": (2, 3),
    "DARKROOM_STREAM_REPLAY_EVENTS": (10_000, 10_003),
    "DARKROOM_STREAM_MAX_S": (3600.0, 3601.5),
    "DARKROOM_MAX_IMAGE_BODY_BYTES": (16_777_216, 16_777_219),
    "DARKROOM_MAX_INLINE_BYTES": (4_194_304, 4_194_307),
    "DARKROOM_MAX_WEBSOCKET_MESSAGE_BYTES": (65_536, 1003),
    "DARKROOM_MAX_UPLOAD_BYTES": (20_971_520, 20_971_523),
    "DARKROOM_MAX_UPLOAD_PIXELS": (33_554_432, 33_554_435),
    "DARKROOM_MAX_UPLOAD_NAME_CHARS": (255, 258),
    "DARKROOM_UPLOAD_DECODES": (2, 5),
    "DARKROOM_MAX_HELD_BODY_BYTES": (134_217_728, 134_217_731),
    "DARKROOM_BODY_WAIT_S": (10.0, 11.5),
    "DARKROOM_BODY_GRACE_S": (10.0, 11.5),
    "DARKROOM_UNREAD_BODY_S": (3.0, 6.5),
    "DARKROOM_MAX_UNREAD_BODIES": (100, 7),
    "DARKROOM_MAX_UNREAD_BODY_BYTES": (64 * 1024**2, 7),
    "DARKROOM_MIN_BODY_BYTES_PER_S": (32_768.0, 32_769.5),
    "DARKROOM_BODY_CHECKS": (2, 5),
    "DARKROOM_KEY_CACHE_S": (5.0, 1.5),
    "DARKROOM_KEY_ROTATION_GRACE_S": (604800.0, 604801.5),
    "DARKROOM_KEY_RATE_PER_S": (0.0, 1.5),
    "DARKROOM_KEY_BURST": (20, 23),
    "DARKROOM_KEY_MAX_OPEN_JOBS": (0, 3),
    "DARKROOM_KEY_MAX_COST": (0.0, 1.5),
    "DARKROOM_KEY_EMBED_METADATA": (True, False),
    "DARKROOM_KEY_IMAGE_FORMAT": ("png", "webp"),
    "DARKROOM_KEY_IMAGE_QUALITY": (90, 100),
    "DARKROOM_KEY_ENDPOINTS": (("*",), ("fast", "slow")),
    "DARKROOM_KEY_CALLBACK_HOSTS": (("*",), ("*.example.com", "hooks.example.org")),
    "DARKROOM_OWNER_RATE_PER_S": (100.0, 1.5),
    "DARKROOM_OWNER_BURST": (500, 503),
    "DARKROOM_OWNER_MAX_OPEN_JOBS": (2000, 3),
    "DARKROOM_OWNER_MAX_RUNNING_JOBS": (0, 3),
    "DARKROOM_OWNER_MAX_ENDPOINTS": (2, 5),
    "DARKROOM_OWNER_MAX_ENDPOINT_GPUS": (2.0, 0.5),
    "DARKROOM_OWNER_MAX_ENDPOINT_CPUS": (8.0, 3.5),
    "DARKROOM_OWNER_MAX_JOBS_PER_WORKER": (16, 3),
    "DARKROOM_OWNER_MAY_KEEP_WORKERS": (False, True),
    "DARKROOM_OWNER_MAX_WAITS": (512, 515),
    "DARKROOM_OWNER_MAX_STREAMS": (256, 259),
    "DARKROOM_OWNER_MAX_LOG_BYTES": (536_870_912, 536_870_915),
    "DARKROOM_OWNER_MAX_RESULT_BYTES": (21_474_836_480, 21_474_836_483),
    "DARKROOM_OWNER_MAX_UPLOAD_BYTES": (2_147_483_648, 2_147_483_651),
    "DARKROOM_OWNER_SLOTS_KEPT_FREE": (1, 2),
    "DARKROOM_KEY_REFUSAL_LINES_PER_S": (10, 3),
    "DARKROOM_LOG_STREAMS": (1, 4),
    "DARKROOM_LOG_PROJECTIONS": (1, 4),
    "DARKROOM_DISPATCHERS": (1, 4),
    "DARKROOM_LOG_ROUTERS": (1, 4),
    "DARKROOM_LOG_MAX_BYTES": (2_147_483_648, 2_147_483_651),
    "DARKROOM_LOG_HOT_S": (3600.0, 3601.5),
    "DARKROOM_LOG_SEGMENT_BYTES": (4_194_304, 4_194_307),
    "DARKROOM_LOG_BATCH_JOBS": (4096, 4099),
    "DARKROOM_LOG_BATCH_BYTES": (33_554_432, 33_554_435),
    "DARKROOM_LOG_PURGES_AT_ONCE": (32, 35),
    "DARKROOM_LOG_REPLICAS": (1, 4),
    "DARKROOM_LOG_FULL_RATIO": (0.85, 0.5),
    "DARKROOM_LOG_KNOWN_S": (10.0, 11.5),
    "DARKROOM_APPEND_TIMEOUT_S": (10.0, 11.5),
    "DARKROOM_APPEND_TRY_TIMEOUT_S": (2.0, 3.5),
    "DARKROOM_READY_PERIOD_S": (5.0, 6.5),
    "DARKROOM_JOB_TIMEOUT_S": (3600.0, 3601.5),
    "DARKROOM_DEADLINES_PERIOD_S": (1.0, 2.5),
    "DARKROOM_RAY_CALLS": (8, 11),
    "DARKROOM_MAX_ENDPOINTS": (100, 15),
    "DARKROOM_ENDPOINT_DRAIN_S": (300.0, 301.5),
    "DARKROOM_ENDPOINTS_FILE": (None, Path("endpoints.yaml")),
    "DARKROOM_ENDPOINT_GONE_S": (60.0, 61.5),
    "DARKROOM_MAX_ATTEMPTS": (3, 6),
    "DARKROOM_MAX_ATTEMPTS_TOTAL": (100, 40),
    "DARKROOM_LEASE_S": (30.0, 31.5),
    "DARKROOM_LEASE_RENEW_S": (5.0, 6.5),
    "DARKROOM_STEP_TIMEOUT_S": (120.0, 121.5),
    "DARKROOM_MODEL_LOAD_TIMEOUT_S": (600.0, 601.5),
    "DARKROOM_ENGINE_ANSWER_TIMEOUT_S": (30.0, 31.5),
    "DARKROOM_EXCLUSIVE_TIMEOUT_S": (600.0, 601.5),
    "DARKROOM_STANDBY_ENGINE": (None, True),
    "DARKROOM_MIN_WORKERS": (1, 4),
    "DARKROOM_MAX_WORKERS": (1, 4),
    "DARKROOM_WORKER_GPUS": (None, 0.5),
    "DARKROOM_WORKER_CPUS": (1.0, 2.5),
    "DARKROOM_JOBS_PER_WORKER": (0, 7),
    "DARKROOM_MAX_DISPATCH_FAILURES": (5, 3),
    "DARKROOM_FAIR_TURN_COST": (10.0, 11.5),
    "DARKROOM_JOBS_IN_HAND": (20_000, 30_000),
    "DARKROOM_WARM_WAIT_S": (3.0, 4.5),
    "DARKROOM_JOBS_PER_ACTOR": (0, 3),
    "DARKROOM_SPARE_JOB_ACTORS": (2, 5),
    "DARKROOM_JOB_ACTORS_STARTING": (0, 3),
    "DARKROOM_JOB_ACTOR_IDLE_S": (300.0, 30.0),
    "DARKROOM_WORKER_IDLE_S": (300.0, 301.5),
    "DARKROOM_WORKERS_KEPT_S": (60.0, 61.25),
    "DARKROOM_WORKER_UNWANTED_S": (60.0, 61.5),
    "DARKROOM_WORKER_REPLACE_S": (30.0, 31.5),
    "DARKROOM_WORKER_START_S": (300.0, 301.5),
    "DARKROOM_WORKER_START_DEATHS": (5, 8),
    "DARKROOM_WORKER_RETRY_FIRST_S": (10.0, 11.5),
    "DARKROOM_WORKER_RETRY_LONGEST_S": (600.0, 601.5),
    "DARKROOM_COMPATIBILITY": ("webui", "comfyui"),
    "DARKROOM_PRECISION": ("auto", "bfloat16"),
    "DARKROOM_CHANNELS_LAST": (False, True),
    "DARKROOM_COMPILER": (None, "inductor"),
    "DARKROOM_ENGINE_THREADS": (0, 3),
    "DARKROOM_MAX_ROWS": (32, 35),
    "DARKROOM_MODEL_CACHE_BYTES": (8_589_934_592, 8_589_934_595),
    "DARKROOM_TEXT_CACHE_BYTES": (134_217_728, 134_217_731),
    "DARKROOM_WEIGHT_STREAMING": ("auto", "off"),
    "DARKROOM_JOB_MEMORY_BYTES": (2 * 1024**3, 1),
    "DARKROOM_ENGINE_MEMORY_BYTES": (None, 1),
    "DARKROOM_PROGRESS_PERIOD_S": (0.25, 1.5),
    "DARKROOM_PREVIEW_PERIOD_S": (1.0, 1.5),
    "DARKROOM_STEP_SEED_OFFSET": (1, 3),
    "DARKROOM_RETENTION_DAYS": (30.0, 31.5),
    "DARKROOM_UPLOAD_RETENTION_DAYS": (30.0, 31.5),
    "DARKROOM_SWEEP_GRACE_S": (3600.0, 3601.5),
    "DARKROOM_JANITOR_PERIOD_S": (60.0, 61.5),
    "DARKROOM_UPKEEP_LEASE_S": (120.0, 121.5),
    "DARKROOM_CALLBACK_REQUIRE_HTTPS": (False, True),
    "DARKROOM_CALLBACK_PORTS": ((), (443, 8443)),
    "DARKROOM_CALLBACK_CONNECT_TIMEOUT_S": (3.0, 4.5),
    "DARKROOM_CALLBACK_TIMEOUT_S": (15.0, 16.5),
    "DARKROOM_CALLBACK_MAX_ANSWER_BYTES": (16_384, 16_387),
    "DARKROOM_CALLBACK_DELAYS_S": (
        (0, 5, 30, 120, 600, 1800, 3600, 10800, 21600, 43200),
        (0.0, 1.5),
    ),
    "DARKROOM_CALLBACK_JITTER": (0.2, 0.5),
    "DARKROOM_CALLBACK_PROCESSES": (1, 4),
    "DARKROOM_CALLBACK_IN_FLIGHT": (256, 259),
    "DARKROOM_CALLBACK_PER_HOST": (4, 7),
    "DARKROOM_CALLBACK_BREAKER_FAILURES": (4, 7),
    "DARKROOM_CALLBACK_BREAKER_OPEN_S": (15.0, 16.5),
    "DARKROOM_CALLBACK_BREAKER_LONGEST_S": (600.0, 601.5),
    "DARKROOM_CALLBACK_WITHHELD_S": (172800.0, 172801.5),
    "DARKROOM_CALLBACK_MAX_IMAGES": (32, 35),
    "DARKROOM_CALLBACK_BEFORE_END_S": (300.0, 301.5),
    "DARKROOM_CALLBACK_SECRETS": (3, 6),
    "DARKROOM_CALLBACK_PROXY": (None, SecretStr("http://proxy:3128")),
    "DARKROOM_CALLBACK_MAX_REDELIVERIES": (100, 103),
    "DARKROOM_CALLBACK_TESTS_PER_MINUTE": (10, 13),
    "DARKROOM_CALLBACK_MAX_ERRORS": (10, 13),
    "DARKROOM_CALLBACK_REPAIR_BATCH": (5000, 5003),
    "DARKROOM_HTTP_REPLICAS": (None, 4),
    "DARKROOM_DISPATCHER_LEASE_S": (6.0, 7.5),
    "DARKROOM_ENDPOINTS_PERIOD_S": (2.0, 3.5),
    "DARKROOM_REQUEUE_PERIOD_S": (60.0, 61.5),
    "DARKROOM_RAY_NUM_GPUS": (None, 2),
}
"""Default and another value of every variable; operators depend on the names."""


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


def test_these_are_all_variables_with_their_defaults() -> None:
    assert by_variable(Settings.load()) == {
        variable: default for variable, (default, _) in VARIABLES.items()
    }


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_variable_is_read_and_changes_nothing_else(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    before = by_variable(Settings.load())
    _, other = VARIABLES[variable]
    monkeypatch.setenv(variable, written(other))
    assert by_variable(Settings.load()) == before | {variable: other}


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_serve_argument_goes_before_its_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    default, other = VARIABLES[variable]
    name = variable.removeprefix("DARKROOM_").lower()
    monkeypatch.setenv(variable, written(other))
    arguments: dict[str, Any] = {name: default}
    assert by_variable(Settings.load(**arguments))[variable] == default
