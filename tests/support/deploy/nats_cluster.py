"""Three nats-servers with deploy/nats/nats.conf: TLS, accounts, three copies of every stream."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from examples.service import free_port
from local.nats_server import nats_server_binary
from tests.support.deploy.manifests import DEPLOY, one

PASSWORDS = {"NATS_SERVICE_PASSWORD": "p12e5a", "NATS_READER_PASSWORD": "p0x7f"}
"""Passwords as the documentation creates them. Without the first letter they would be numbers."""


@dataclass(slots=True)
class Server:
    name: str
    folder: Path
    client_port: int = field(default_factory=free_port)
    cluster_port: int = field(default_factory=free_port)
    monitor_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def configure(self, replaced: dict[str, str]) -> None:
        text = (DEPLOY / "nats" / "nats.conf").read_text()
        mine = {
            "\nport: 4222\n": f'\nlisten: "127.0.0.1:{self.client_port}"\n',
            "  port: 6222\n": f'  listen: "127.0.0.1:{self.cluster_port}"\n',
            "http_port: 8222": f'http: "127.0.0.1:{self.monitor_port}"',
            "/var/run/nats/": f"{self.folder}/",
            '"/data"': f'"{self.folder}/data"',
        }
        for old, new in (mine | replaced).items():
            assert old in text, old
            text = text.replace(old, new)
        (self.folder / "nats.conf").write_text(text)
        shutil.copy(DEPLOY / "nats" / "accounts.conf", self.folder)

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [nats_server_binary(), "--config", str(self.folder / "nats.conf")],
                env={"POD_NAME": self.name, **PASSWORDS},
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)


@dataclass(frozen=True, slots=True)
class Cluster:
    servers: list[Server]
    ca_file: Path

    def named(self, name: str) -> Server:
        return next(server for server in self.servers if server.name == name)

    def url(self, user: str) -> str:
        password = PASSWORDS[f"NATS_{user.upper()}_PASSWORD"]
        hosts = [f"localhost:{server.client_port}" for server in self.servers]
        return ",".join(f"tls://{user}:{password}@{host}" for host in hosts)


@contextmanager
def nats_cluster(folder: Path) -> Iterator[Cluster]:
    """Run three servers. Skips the test if openssl is missing, which makes the certificates."""
    certificates = make_certificates(folder)
    servers = []
    for number in range(one("nats/stateful-set.yaml", "StatefulSet")["spec"]["replicas"]):
        (folder / f"nats-{number}").mkdir()
        servers.append(Server(f"nats-{number}", folder / f"nats-{number}"))
    replaced = {"/etc/nats-tls": str(certificates)} | {
        f"{server.name}.nats-headless:6222": f"localhost:{server.cluster_port}"
        for server in servers
    }
    try:
        for server in servers:
            server.configure(replaced)
            server.start()
        yield Cluster(servers, certificates / "ca.crt")
    finally:
        for server in servers:
            server.kill()


def make_certificates(folder: Path) -> Path:
    """Create certificates as in certificates.yaml, also for `localhost`; return their folder."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    names = [*one("nats/certificates.yaml", "Certificate", "nats")["spec"]["dnsNames"], "localhost"]
    made = folder / "tls"
    made.mkdir()
    (made / "names").write_text("subjectAltName=" + ",".join(f"DNS:{name}" for name in names))
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    sign = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names"]
    for arguments in (
        ["req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=ca"],
        ["req", *key, "-keyout", "tls.key", "-out", "tls.csr", "-subj", "/CN=nats"],
        ["x509", "-req", "-in", "tls.csr", *sign, "-out", "tls.crt"],
    ):
        subprocess.run(["openssl", *arguments], cwd=made, check=True, capture_output=True)
    return made
