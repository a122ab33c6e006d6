"""Which addresses may be called back: by URL, by name, by the settings and by the service's own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.callback_address import LONGEST_PUT_URL, LONGEST_URL, Address, AddressRule, Own, Target
from events.errors import AddressNotAllowed
from tests.support.callbacks.hostile_addresses import HOSTILE, HOSTILE_ANSWERS

PUBLIC = AddressRule()
HOOKS = PUBLIC.check_url("http://hooks.example.com/")
LOOPBACK = AddressRule(allow_networks=[ip_network("127.0.0.0/8")])


@pytest.mark.parametrize(("url", "reason"), HOSTILE)
def test_a_hostile_url_is_refused_and_the_message_says_why(url: str, reason: str) -> None:
    with pytest.raises(AddressNotAllowed, match=reason):
        PUBLIC.check_url(url)


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://example.com", Target("http", "example.com", 80)),
        ("https://Example.COM/done?job=1&x=%20", Target("https", "example.com", 443)),
        ("HTTPS://example.com:/done", Target("https", "example.com", 443)),
        ("http://example.com:443/", Target("http", "example.com", 443)),
        ("http://hooks.my_team.example:8443/a", Target("http", "hooks.my_team.example", 8443)),
        ("https://xn--exmple-cua.com/", Target("https", "xn--exmple-cua.com", 443)),
        ("http://example.com/erledigt/ä", Target("http", "example.com", 80)),
        ("http://example.com?done", Target("http", "example.com", 80)),
        ("http://8.8.8.8:1024/", Target("http", "8.8.8.8", 1024)),
        ("http://[2606:4700:0::1111]/", Target("http", "2606:4700::1111", 80)),
        ("http://1.2.3.4.example.com/", Target("http", "1.2.3.4.example.com", 80)),
    ],
)
def test_a_public_url_gives_its_target(url: str, target: Target) -> None:
    assert PUBLIC.check_url(url) == target


def test_a_url_has_so_many_characters_at_most() -> None:
    longest = "http://example.com/".ljust(LONGEST_URL, "a")
    PUBLIC.check_url(longest)
    with pytest.raises(AddressNotAllowed, match=f"longer than {LONGEST_URL} "):
        PUBLIC.check_url(longest + "a")
    PUBLIC.check_url(longest + "a", longest=LONGEST_PUT_URL)


@pytest.mark.parametrize(
    "ip",
    ["1.1.1.1", "9.255.255.255", "100.63.255.255", "172.32.0.1", "2001:200::1", "2a00:1450::1"],
)
def test_neighbours_of_denied_networks_are_public(ip: str) -> None:
    PUBLIC.check_ip(ip)


@pytest.mark.parametrize("ip", ["", "example.com", "127.1", "1.2.3.4/8"])
def test_what_is_no_address_is_refused(ip: str) -> None:
    with pytest.raises(AddressNotAllowed):
        PUBLIC.check_ip(ip)


@settings(deadline=None)
@given(st.ip_addresses())
def test_nothing_that_python_calls_private_passes(ip: object) -> None:
    address = ip_address(str(ip))
    try:
        PUBLIC.check_ip(address)
    except AddressNotAllowed:
        return
    assert address.is_global
    assert not address.is_multicast


@settings(deadline=None)
@given(st.text())
def test_any_text_is_answered_by_a_target_or_a_refusal(text: str) -> None:
    for url in (text, f"http://{text}", f"https://example.com:{text}", f"http://[{text}]/"):
        try:
            target = PUBLIC.check_url(url)
        except AddressNotAllowed:
            continue
        assert target.host
        assert 0 < target.port < 65536


class TestSettings:
    def test_https_can_be_required(self) -> None:
        rule = AddressRule(require_https=True)
        assert rule.check_url("https://example.com/").port == 443
        with pytest.raises(AddressNotAllowed, match="must be https"):
            rule.check_url("http://example.com/")

    def test_listed_ports_replace_the_default(self) -> None:
        rule = AddressRule(ports=[443, 22])
        assert rule.check_url("https://example.com:22/").port == 22
        for url in ("http://example.com/", "https://example.com:8443/"):
            with pytest.raises(AddressNotAllowed, match="allowed ports are 22, 443"):
                rule.check_url(url)

    @pytest.mark.parametrize(
        ("opened", "url", "is_allowed"),
        [
            ("127.0.0.0/8", "http://127.0.0.1:9000/task_completed", True),
            ("127.0.0.0/8", "http://localhost:9000/task_completed", True),
            ("127.0.0.0/8", "http://[::ffff:127.0.0.1]:9000/", True),
            ("::1/128", "http://localhost:9000/", True),
            ("127.0.0.0/8", "http://10.0.0.1/", False),
            ("127.0.0.0/8", "http://[::1]/", False),
            ("127.0.0.0/8", "http://127.1/", False),
            ("127.0.0.0/8", "http://receiver/", False),
            ("10.0.0.0/8", "http://localhost/", False),
        ],
    )
    def test_an_opened_network_is_allowed_and_every_other_stays_closed(
        self, opened: str, url: str, is_allowed: bool
    ) -> None:
        rule = AddressRule(allow_networks=[ip_network(opened)])
        if is_allowed:
            assert rule.check_url(url).port == 9000
            return
        with pytest.raises(AddressNotAllowed):
            rule.check_url(url)


class TestResolving:
    @pytest.mark.parametrize(("answers", "refused"), HOSTILE_ANSWERS)
    async def test_one_hostile_answer_refuses_the_name_and_only_the_log_names_it(
        self, answers: tuple[str, ...], refused: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO")
        with pytest.raises(AddressNotAllowed, match=r"com resolves to .* not public") as refusal:
            await PUBLIC.addresses(HOOKS, answering(*answers))
        assert not any(answer in str(refusal.value) for answer in answers)
        assert str(ip_address(refused)) in vars(caplog.records[-1])["error"]

    async def test_the_answers_are_what_may_be_connected_to(self) -> None:
        found = await PUBLIC.addresses(HOOKS, answering("8.8.8.8", "2606:4700::1111"))
        assert [str(each) for each in found] == ["8.8.8.8", "2606:4700::1111"]

    async def test_a_literal_is_not_resolved(self) -> None:
        target = PUBLIC.check_url("http://8.8.8.8/")
        assert await PUBLIC.addresses(target, failing) == (ip_address("8.8.8.8"),)

    @pytest.mark.parametrize("answers", [(), ("not an address",), None])
    async def test_a_name_without_addresses_is_refused(
        self, answers: tuple[str, ...] | None
    ) -> None:
        resolve = failing if answers is None else answering(*answers)
        with pytest.raises(AddressNotAllowed, match="does not resolve"):
            await PUBLIC.addresses(HOOKS, resolve)

    async def test_localhost_keeps_to_the_family_that_is_opened(self) -> None:
        target = LOOPBACK.check_url("http://localhost:9000/")
        found = await LOOPBACK.addresses(target, answering("::1", "127.0.0.1", "10.0.0.1"))
        assert found == (ip_address("127.0.0.1"),)


def answering(*addresses: str):
    async def resolve(host: str) -> tuple[str, ...]:
        return addresses

    return resolve


async def failing(host: str) -> tuple[str, ...]:
    raise OSError("name server unreachable")


# What is denied although it is public or allowed.

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


async def resolved(host: str) -> Sequence[str]:
    answers = {
        "nats": ["10.0.0.9"],
        "hooks.example.com": ["8.8.8.8"],
        "me.example.com": [str(MINE)],
    }
    if host not in answers:
        raise OSError
    return answers[host]


async def reach(rule: AddressRule, url: str) -> None:
    await rule.addresses(rule.check_url(url), resolved)


async def refused(rule: AddressRule, url: str, why: str) -> None:
    with pytest.raises(AddressNotAllowed) as refusal:
        await reach(rule, url)
    # For a name, only the cause says why.
    assert re.search(why, f"{refusal.value} {refusal.value.__cause__}")


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
    await refused(rule(allow=anything, deny=["8.8.8.0/24"]), url, "does not allow")
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
        await refused(rule(allow=[f"{MINE}/32"], deny=["10.0.0.0/8"]), url, "does not allow")
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
