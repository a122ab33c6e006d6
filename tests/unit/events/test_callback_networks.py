"""What is denied although it is public or allowed: networks, and where the service listens."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address, ip_network

import pytest

from events.callback_address import AddressRule
from events.callback_networks import Address, Own
from events.errors import AddressNotAllowed

MINE = ip_address("10.0.0.5")
PUBLIC_AND_MINE = ip_address("8.8.4.4")


def interfaces() -> set[Address]:
    return {MINE, PUBLIC_AND_MINE, ip_address("127.0.0.1"), ip_address("::1")}


def rule(
    *services: tuple[str, int], allow: Sequence[str] = (), deny: Sequence[str] = ()
) -> AddressRule:
    return AddressRule(
        allow_networks=[ip_network(each) for each in allow],
        deny_networks=[ip_network(each) for each in deny],
        own=Own(services=services, interfaces=interfaces),
    )


async def resolve(host: str) -> Sequence[str]:
    answers = {
        "nats": ["10.0.0.9"],
        "hooks.example.com": ["8.8.8.8"],
        "me.example.com": [str(MINE)],
    }
    if host not in answers:
        raise OSError
    return answers[host]


async def reach(rule: AddressRule, url: str) -> None:
    await rule.addresses(rule.check_url(url), resolve)


async def refused(rule: AddressRule, url: str, why: str) -> None:
    with pytest.raises(AddressNotAllowed, match=why):
        await reach(rule, url)


@pytest.mark.parametrize(
    "url",
    [
        "http://8.8.8.8/",
        "http://hooks.example.com/",
        "http://[::ffff:8.8.8.8]/",
        "http://[64:ff9b::808:808]/",
        "http://[2002:808:808::1]/",
    ],
)
async def test_a_denied_network_is_closed_in_every_form(url: str) -> None:
    anything = ["0.0.0.0/0", "::/0"]
    await reach(rule(allow=anything), url)
    await refused(rule(allow=anything, deny=["8.8.8.0/24"]), url, "denied here")
    await reach(rule(allow=anything, deny=["8.8.9.0/24", "2001:db8::/32"]), url)


@pytest.mark.parametrize("bound_to", ["127.0.0.1", "0.0.0.0", "::", "localhost"])
async def test_the_services_port_is_closed_at_this_machine_and_the_others_stay_open(
    bound_to: str,
) -> None:
    loopback = rule((bound_to, 8000), allow=["127.0.0.0/8", "::1/128"])
    for host in ("127.0.0.1", "127.1.2.3", "[::1]"):
        await reach(loopback, f"http://{host}:8001/")
        if bound_to != "localhost":  # which has to be resolved
            await refused(loopback, f"http://{host}:8000/", "of this service itself")
    await refused(loopback, "http://localhost:8000/", "of this service itself|does not resolve")


async def test_an_address_of_this_machine_is_opened_by_itself_alone() -> None:
    for url in (f"http://{MINE}:9000/", "http://me.example.com:9000/"):
        await refused(rule(allow=["10.0.0.0/8"]), url, "of this service itself")
        await reach(rule(allow=[f"{MINE}/32"]), url)
        await refused(rule(("0.0.0.0", 9000), allow=[f"{MINE}/32"]), url, "of this service itself")
        await refused(rule(allow=[f"{MINE}/32"], deny=["10.0.0.0/8"]), url, "denied here")
    await reach(rule(allow=["10.0.0.0/8"]), "http://10.0.0.6:9000/")


async def test_a_public_address_of_this_machine_is_closed() -> None:
    await refused(rule(), f"http://{PUBLIC_AND_MINE}/", "of this service itself")


async def test_a_service_known_by_its_name_is_closed_by_its_address_too() -> None:
    inside = rule(("nats", 4222), allow=["10.0.0.0/8"])
    await refused(inside, "http://10.0.0.9:4222/", "of this service itself")
    await reach(inside, "http://10.0.0.9:4223/")
    gone = rule(("gone", 4222), allow=["10.0.0.0/8"])
    await reach(gone, "http://10.0.0.9:4222/")
    with pytest.raises(AddressNotAllowed, match="of this service itself"):
        rule(("nats.example.com", 4222)).check_url("http://nats.example.com:4222/")
