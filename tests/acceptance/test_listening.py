"""Where the parts of `darkroom up` listen."""

from __future__ import annotations

from ipaddress import ip_address

import psutil

from tests.support.service import Service, diffusion


def test_nothing_listens_where_another_machine_could_reach_it(service: Service) -> None:
    assert service.ended(service.submit("diffusion", diffusion()))["status"] == 1  # all parts run
    started = psutil.Process(service.pid)
    listening = {
        (process.name(), connection.laddr.ip)
        for process in [started, *started.children(recursive=True)]
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert "ray::ServeReplica:darkroom:Api" in {name for name, _ in listening}
    assert {each for each in listening if not _is_loopback(each[1])} == set()


def _is_loopback(text: str) -> bool:
    address = ip_address(text)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
