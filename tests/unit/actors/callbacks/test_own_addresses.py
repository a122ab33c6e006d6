from __future__ import annotations

from ipaddress import ip_address
from typing import Any

from actors.callbacks.own_addresses import interface_addresses, own_services
from settings.settings import Settings


def services(**arguments: Any) -> set[tuple[str, int]]:
    settings = Settings.load(**arguments)
    return set(own_services(settings.http, settings.log, settings.stores, settings.callbacks))


def test_what_the_settings_name_is_the_services_own() -> None:
    assert services() == {("127.0.0.1", 8000)}
    assert services(
        host="0.0.0.0",
        port=9000,
        public_url="https://9.9.9.9/darkroom",
        nats_url="nats://service:password@nats-1,nats://nats-2:4333,nats-3:4222,user:pass@nats-4",
        database_url="postgresql+asyncpg://user:password@db/darkroom",
        callback_proxy="http://user:password@proxy:3128",
    ) == {
        ("0.0.0.0", 9000),
        ("9.9.9.9", 443),
        ("nats-1", 4222),
        ("nats-2", 4333),
        ("nats-3", 4222),
        ("nats-4", 4222),
        ("db", 5432),
        ("proxy", 3128),
    }


def test_a_name_in_the_public_url_may_be_others_too() -> None:
    assert services(public_url="https://example.com/darkroom") == {("127.0.0.1", 8000)}


def test_the_addresses_of_this_machine_have_loopback_among_them() -> None:
    assert ip_address("127.0.0.1") in interface_addresses()
