from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.callback_address import AddressRule, Target
from events.errors import AddressNotAllowed

PUBLIC = AddressRule()
LOOPBACK = AddressRule(allow_networks=[ip_network("127.0.0.0/8")])

HOSTILE = [
    # not an address of the web
    ("", "form http"),
    ("example.com/done", "form http"),
    ("//example.com/done", "form http"),
    ("http:example.com", "form http"),
    ("http:/example.com", "form http"),
    ("ftp://example.com/", "http or https"),
    ("file:///etc/passwd", "http or https"),
    ("gopher://example.com:6379/_FLUSHALL", "http or https"),
    ("javascript://example.com/%0aalert(1)", "http or https"),
    ("unix://%2Fvar%2Frun%2Fdocker.sock/", "http or https"),
    # what two parsers read differently
    ("http://", "no valid host"),
    ("http:///done", "no valid host"),
    ("http://:8080/", "no valid host"),
    ("http://user@example.com/", "user name"),
    ("http://user:pass@example.com/", "user name"),
    ("http://example.com@127.0.0.1/", "user name"),
    ("http://127.0.0.1:80@example.com/", "user name"),
    ("http://example.com#@127.0.0.1/", "fragment"),
    ("http://example.com/done#part", "fragment"),
    ("http://example.com\\@127.0.0.1/", "backslash"),
    ("http://example.com\\.evil.example/", "backslash"),
    ("http:\\\\127.0.0.1/", "backslash"),
    (" http://example.com/", "white space"),
    ("http://example.com/ done", "white space"),
    ("http://example.com/\tdone", "white space"),
    ("http://example.com/\r\nX-Header: 1", "white space"),
    ("http://exam\nple.com/", "white space"),
    ("http://example.com/\x00", "white space"),
    ("http://example.com/\u200b", "white space"),
    ("http://example.com/\ud800", "white space"),
    ("http://example.com%2f.evil.example/", "letters, digits"),
    ("http://127.0.0.1%00.example.com/", "letters, digits"),
    ("http://①②⑦.⓪.⓪.①/", "letters, digits"),
    ("http://127。0。0。1/", "letters, digits"),
    ("http://exämple.com/", "Punycode"),
    ("http://xn--a.com/", "not valid Punycode"),
    ("http://www.xn--.com/", "Punycode"),
    ("http://example..com/", "letters, digits"),
    ("http://example.com./", "letters, digits"),
    ("http://-example.com/", "letters, digits"),
    ("http://[example.com]/", "IPv6"),
    ("http://[::1/", "no valid host"),
    ("http://::1/", "no valid host"),
    ("http://" + "a" * 64 + ".com/", "letters, digits"),
    ("http://example.com/" + "a" * 2048, "longer than"),
    # ports
    ("http://example.com:0/", "1 to 65535"),
    ("http://example.com:65536/", "1 to 65535"),
    ("http://example.com:080/", "1 to 65535"),
    ("http://example.com:+80/", "1 to 65535"),
    ("http://example.com:-1/", "1 to 65535"),
    ("http://example.com:８０/", "1 to 65535"),
    ("http://example.com:http/", "1 to 65535"),
    ("http://example.com:80:80/", "1 to 65535"),
    ("http://example.com:22/", "port 22"),
    ("https://example.com:25/", "port 25"),
    ("http://example.com:1023/", "port 1023"),
    # names that are not public
    ("http://localhost/", "this machine"),
    ("http://LOCALHOST:8000/", "this machine"),
    ("http://receiver:8000/", "no dot"),
    ("http://kubernetes/", "no dot"),
    # addresses in other notations
    ("http://2130706433/", "four decimal"),
    ("http://0x7f000001/", "four decimal"),
    ("http://0x7f.0x0.0x0.0x1/", "four decimal"),
    ("http://0177.0.0.1/", "four decimal"),
    ("http://017700000001/", "four decimal"),
    ("http://127.1/", "four decimal"),
    ("http://127.0.1/", "four decimal"),
    ("http://1.2.3.4.5/", "four decimal"),
    ("http://256.256.256.256/", "four decimal"),
    ("http://8.8.8.08/", "four decimal"),
    ("http://example.0x/", "four decimal"),
    ("http://example.1/", "four decimal"),
    # addresses that are not public
    ("http://0.0.0.0/", "not a public address"),
    ("http://127.0.0.1/", "not a public address"),
    ("http://127.255.255.254:8080/", "not a public address"),
    ("http://10.0.0.1/", "not a public address"),
    ("http://100.64.0.1/", "not a public address"),
    ("http://100.100.100.200/latest/meta-data", "not a public address"),
    ("http://168.63.129.16/machine", "not a public address"),
    ("http://169.254.169.254/latest/meta-data", "not a public address"),
    ("http://172.16.0.1/", "not a public address"),
    ("http://172.31.255.255/", "not a public address"),
    ("http://192.0.0.192/", "not a public address"),
    ("http://192.168.1.1/", "not a public address"),
    ("http://198.19.255.255/", "not a public address"),
    ("http://224.0.0.1/", "not a public address"),
    ("http://255.255.255.255/", "not a public address"),
    ("http://[::]/", "not a public address"),
    ("http://[::1]/", "not a public address"),
    ("http://[0:0:0:0:0:0:0:1]/", "not a public address"),
    ("http://[::ffff:127.0.0.1]/", "not a public address"),
    ("http://[::ffff:7f00:1]/", "not a public address"),
    ("http://[::ffff:8.8.8.8]/", "not a public address"),
    ("http://[::127.0.0.1]/", "not a public address"),
    ("http://[64:ff9b::7f00:1]/", "not a public address"),
    ("http://[64:ff9b:1::7f00:1]/", "not a public address"),
    ("http://[2002:7f00:1::]/", "not a public address"),
    ("http://[2001:0:4136:e378:8000:63bf:3fff:fdd2]/", "not a public address"),
    ("http://[2001:db8::1]/", "not a public address"),
    ("http://[3fff::1]/", "not a public address"),
    ("http://[fd00:ec2::254]/latest/meta-data", "not a public address"),
    ("http://[fe80::1]/", "not a public address"),
    ("http://[fe80::1%25eth0]/", "zone"),
    ("http://[fec0::1]/", "not a public address"),
    ("http://[ff02::1]/", "not a public address"),
    ("http://[5f00::1]/", "not a public address"),
]


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


@pytest.mark.parametrize("ip", ["1.1.1.1", "9.255.255.255", "100.63.255.255", "172.32.0.1"])
def test_neighbours_of_denied_networks_are_public(ip: str) -> None:
    PUBLIC.check_ip(ip)


@pytest.mark.parametrize("ip", ["2001:200::1", "2001:4860:4860::8888", "2a00:1450::1"])
def test_public_ipv6_is_allowed(ip: str) -> None:
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
            with pytest.raises(AddressNotAllowed, match="not one of 22, 443"):
                rule.check_url(url)

    @pytest.mark.parametrize(
        "url",
        [
            "http://127.0.0.1:9000/task_completed",
            "http://localhost:9000/task_completed",
            "http://[::ffff:127.0.0.1]:9000/",
        ],
    )
    def test_an_opened_network_is_allowed(self, url: str) -> None:
        assert LOOPBACK.check_url(url).port == 9000

    @pytest.mark.parametrize(
        "url", ["http://10.0.0.1/", "http://[::1]/", "http://127.1/", "http://receiver/"]
    )
    def test_what_was_not_opened_stays_closed(self, url: str) -> None:
        with pytest.raises(AddressNotAllowed):
            LOOPBACK.check_url(url)

    def test_another_opened_network_does_not_open_localhost(self) -> None:
        with pytest.raises(AddressNotAllowed):
            AddressRule(allow_networks=[ip_network("10.0.0.0/8")]).check_url("http://localhost/")

    def test_ipv6_loopback_opens_localhost(self) -> None:
        rule = AddressRule(allow_networks=[ip_network("::1/128")])
        assert rule.check_url("http://localhost:9000/").host == "localhost"


class TestResolving:
    async def test_every_answer_must_pass(self) -> None:
        target = PUBLIC.check_url("http://hooks.example.com/")
        with pytest.raises(AddressNotAllowed, match=r"resolves to 10\.0\.0\.1"):
            await PUBLIC.addresses(target, answering("8.8.8.8", "10.0.0.1"))

    async def test_the_answers_are_what_may_be_connected_to(self) -> None:
        target = PUBLIC.check_url("http://hooks.example.com/")
        found = await PUBLIC.addresses(target, answering("8.8.8.8", "2606:4700::1111"))
        assert [str(each) for each in found] == ["8.8.8.8", "2606:4700::1111"]

    async def test_a_literal_is_not_resolved(self) -> None:
        target = PUBLIC.check_url("http://8.8.8.8/")
        assert await PUBLIC.addresses(target, failing) == (ip_address("8.8.8.8"),)

    @pytest.mark.parametrize("resolve_to", [(), ("not an address",)])
    async def test_a_name_without_addresses_is_refused(self, resolve_to: tuple[str, ...]) -> None:
        target = PUBLIC.check_url("http://hooks.example.com/")
        with pytest.raises(AddressNotAllowed, match="does not resolve"):
            await PUBLIC.addresses(target, answering(*resolve_to))

    async def test_a_failing_name_server_is_a_refusal(self) -> None:
        target = PUBLIC.check_url("http://hooks.example.com/")
        with pytest.raises(AddressNotAllowed, match="does not resolve"):
            await PUBLIC.addresses(target, failing)

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
