"""The limits that are added to the configuration that Ray Serve writes for HAProxy."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from local.haproxy import (
    FrontendNotFound,
    TooFewFiles,
    environment,
    limited,
    limits,
    most_connections,
)
from settings.http import HttpSettings
from tests.support.constants import constants

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="HAProxy runs on Linux alone")


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    """As Serve itself writes it."""
    from ray.serve._private.haproxy import HAProxyApi, HAProxyConfig

    path = tmp_path / "haproxy.cfg"
    config = HAProxyConfig(
        socket_path=str(tmp_path / "admin.sock"),
        server_state_base=str(tmp_path),
        server_state_file=str(tmp_path / "state"),
        metrics_socket_path=str(tmp_path / "metrics.sock"),
    )
    HAProxyApi(config, config_file_path=str(path))._generate_config_file_internal()
    return path


@pytest.mark.parametrize(
    ("host", "bound"),
    [
        ("127.0.0.1", ["bind 127.0.0.1:8000 proto h1"]),
        ("127.1", ["bind 127.0.0.1:8000 proto h1"]),
        ("10.0.0.7", ["bind 127.0.0.1:8000 proto h1", "bind 10.0.0.7:8000 proto h1"]),
        ("0.0.0.0", ["bind 0.0.0.0:8000 proto h1"]),
        ("::1", ["bind 127.0.0.1:8000 proto h1", "bind [::1]:8000 proto h1"]),
        ("::", ["bind [::]:8000 v4v6 proto h1"]),
    ],
)
def test_callers_are_served_on_the_address_of_the_settings(
    configuration: Path, host: str, bound: list[str]
) -> None:
    text = limited(configuration.read_text(), limits(HttpSettings(host=host)))
    frontend = text[text.index("frontend http_frontend") :].splitlines()
    assert [each.strip() for each in frontend if each.startswith("    bind")] == bound


def test_the_limits_are_in_the_frontend_of_callers(configuration: Path) -> None:
    assert "stick-table" not in limits(HttpSettings(max_connections_per_address=0))
    with constants(header_timeout_s=2.5):
        lines = limits(HttpSettings(max_connections_per_address=7))
    assert "timeout http-request 2500ms" in lines
    assert "reject if { sc0_conn_cur gt 7 }" in lines
    text = limited(configuration.read_text(), lines)
    assert text.count(lines) == 1
    frontend = text[text.index("frontend http_frontend") :]
    assert frontend[: frontend.index("acl ")].count(lines) == 1
    assert limited(text, lines) == text


def test_only_what_changes_nothing_is_asked_of_another_replica_once_it_was_sent() -> None:
    assert "http-request disable-l7-retry if !METH_GET\n" in limits(HttpSettings())


def test_requests_are_logged_to_no_address(configuration: Path) -> None:
    text = limited(configuration.read_text(), limits(HttpSettings()))
    targets = {line.split()[1] for line in text.splitlines() if line.strip().startswith("log ")}
    # The socket belongs to Serve's metrics.
    assert targets == {"global", str(configuration.with_name("metrics.sock"))}


def test_log_lines_of_metrics_contain_no_address(configuration: Path) -> None:
    text = limited(configuration.read_text(), limits(HttpSettings()))
    frontend = text[text.index("frontend http_frontend") :].partition("\nbackend ")[0]
    assert frontend.count("\n    log-format ") == 1
    assert '\n    log-format "%ST"\n' in frontend


def test_what_a_caller_does_not_read_is_held_in_small_buffers(configuration: Path) -> None:
    text = limited(configuration.read_text(), limits(HttpSettings()))
    settings = [line.strip() for line in text.partition("\ndefaults\n")[0].splitlines()]
    assert "tune.sndbuf.client 131072" in settings
    assert "tune.rcvbuf.server 65536" in settings


@pytest.mark.parametrize(
    "head",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]),
        (
            b"GET /x HTTP/1.1\r\nHost: d\r\nConnection: Upgrade, HTTP2-Settings\r\n"
            b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
        ),
    ],
    ids=["preface", "h2c"],
)
def test_callers_speak_http_1_only(
    configuration: Path, tmp_path: Path, free_port: int, head: bytes
) -> None:
    with running(configuration, tmp_path, free_port):
        answer = _answer(free_port, head)
    assert answer.startswith((b"HTTP/1.1 ", b"HTTP/1.0 "))
    assert b"101" not in answer.splitlines()[0]


def test_serve_lists_its_applications_to_no_caller(
    configuration: Path, tmp_path: Path, free_port: int
) -> None:
    with running(configuration, tmp_path, free_port):
        for path in (b"/-/routes", b"/-/ROUTES?a", b"http://d/-/routes"):
            answer = _answer(free_port, b"GET " + path + b" HTTP/1.1\r\nHost: d\r\n\r\n")
            assert b" 404 " in answer.splitlines()[0], path
            assert b"There is nothing at this path." in answer
        health = _answer(free_port, b"GET /-/healthz HTTP/1.1\r\nHost: d\r\n\r\n")
        assert b" 503 " in health.splitlines()[0]  # There is no replica.


@contextmanager
def running(configuration: Path, folder: Path, port: int) -> Iterator[None]:
    variables = environment(HttpSettings(port=port), folder)
    command = [variables["RAY_SERVE_HAPROXY_BINARY_PATH"], "-db", "-f", str(configuration)]
    with subprocess.Popen(command) as haproxy:
        try:
            yield
        finally:
            haproxy.kill()


def _answer(port: int, head: bytes) -> bytes:
    give_up_at = time.monotonic() + 20
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port), timeout=20)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < give_up_at
            time.sleep(0.02)
    with connection:
        connection.sendall(head)
        return connection.recv(4096)


def test_a_replica_that_refuses_is_soon_given_up(configuration: Path) -> None:
    text = limited(configuration.read_text(), limits(HttpSettings()))
    lines = [line.strip() for line in text.splitlines()]
    assert [line for line in lines if line.startswith("timeout connect")] == [
        "timeout connect 300ms"
    ]
    assert "timeout queue 5000ms" in lines  # Otherwise a queue would be as short as a connection.


def test_metrics_and_statistics_are_for_this_machine_alone(configuration: Path) -> None:
    text = limited(configuration.read_text(), limits(HttpSettings()))
    binds = [line.split()[1] for line in text.splitlines() if line.strip().startswith("bind ")]
    assert len(binds) == 3
    other = [bind for bind in binds if not bind.endswith(":8000")]
    assert [bind.rpartition(":")[0] for bind in other] == ["127.0.0.1"] * 2


def test_a_path_is_not_said_to_be_unknown_before_any_replica_is_known(configuration: Path) -> None:
    text = limited(configuration.read_text(), limits(HttpSettings()))
    backend = text.split("\nbackend default_backend\n")[1].splitlines()[0]
    assert "status 503" in backend
    assert "hdr Retry-After 2" in backend
    body = json.loads(backend.split("'")[1])
    assert body["error"]["type"] == "unavailable"
    assert "status 404" not in backend


def test_what_has_no_path_is_not_said_to_come_too_early() -> None:
    [line] = [each for each in limits(HttpSettings()).splitlines() if "path_beg" in each]
    assert "status 404" in line
    assert json.loads(line.split("'")[1])["error"]["type"] == "not_found"


def test_a_start_with_too_few_files_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 4095))
    with pytest.raises(TooFewFiles, match="only 4095 files here, and the service needs 4096"):
        environment(HttpSettings(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_there_are_no_more_connections_than_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 4096))
    assert most_connections() == (4096 - 256) * 2 // 5 - 128
    with constants(max_connections=100):
        assert most_connections() == 100


@pytest.mark.parametrize("name", ["frontend http_frontend", "frontend prometheus", "listen stats"])
def test_so_is_one_that_lacks_a_frontend(configuration: Path, name: str) -> None:
    with pytest.raises(FrontendNotFound):
        limited(configuration.read_text().replace(f"{name}\n", f"{name}_x\n"), "    maxconn 1\n")


def test_the_launcher_becomes_haproxy_with_the_limits(configuration: Path, tmp_path: Path) -> None:
    variables = environment(HttpSettings(), tmp_path)
    launcher = variables["RAY_SERVE_HAPROXY_BINARY_PATH"]
    command = [launcher, "-c", "-f", str(configuration)]
    checked = subprocess.run(command, capture_output=True, check=False, timeout=20)
    assert checked.returncode == 0, checked.stderr
    assert "sc0_conn_cur gt 1024" in configuration.read_text()
