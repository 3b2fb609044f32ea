"""Where a server sends no request of its own, however the address is written (durable_streams)."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.wire.outbound_urls import Target, UrlRefused, check_address, check_url

AROUND = [
    "127.0.0.1", "127.255.255.254", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255",
    "192.168.1.1", "169.254.169.254", "100.64.0.1", "100.100.100.200", "192.0.0.192",
    "198.18.0.1", "192.0.2.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "240.0.0.1",
    "255.255.255.255", "168.63.129.16",
    "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:a9fe:a9fe",
    "::ffff:8.8.8.8", "::127.0.0.1", "64:ff9b::127.0.0.1", "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::7f00:1", "2002:7f00:1::", "2002:a9fe:a9fe::1", "2001:0:4136:e378:8000:63bf::1",
    "fec0::1", "4000::1",
]  # fmt: skip
PUBLIC = ["8.8.8.8", "93.184.216.34", "172.32.0.1", "2606:4700::1111", "64:ff9b::808:808"]


@pytest.mark.parametrize("address", AROUND)
def test_what_is_around_the_server_is_refused(address: str) -> None:
    assert check_address(address, loopback=False) is not None
    bare = ipaddress.ip_address(address.partition("%")[0])
    if not bare.is_loopback or (bare.version == 6 and bare.ipv4_mapped is not None):
        assert check_address(address, loopback=True) is not None
    host = f"[{address}]" if ":" in address else address
    assert isinstance(check_url(f"https://{host}/hook", loopback=False), UrlRefused)


@pytest.mark.parametrize("address", PUBLIC)
def test_what_is_public_is_not(address: str) -> None:
    assert check_address(address, loopback=False) is None


@given(st.integers(0, 2**32 - 1))
def test_an_address_of_ipv4_that_is_refused_is_refused_inside_of_one_of_ipv6(number: int) -> None:
    inner = ipaddress.IPv4Address(number)
    if check_address(str(inner), loopback=False) is not None:
        for carried in (
            ipaddress.IPv6Address((0xFFFF << 32) | number),
            ipaddress.IPv6Address((0x64FF9B << 96) | number),
            ipaddress.IPv6Address((0x2002 << 112) | (number << 80)),
            ipaddress.IPv6Address(number),
        ):
            assert check_address(str(carried), loopback=False) is not None, carried


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "ftp://example.com/",
        "example.com",
        "https://",
        "https:///path",
        "https://user@example.com/",
        "https://user:word@example.com/",
        "https://example.com/#part",
        "https://example.com:0/",
        "https://example.com:70000/",
        "https://exa mple.com/",
        "https://example.com/\r\nhost: x",
        "https://example.com\\@127.0.0.1/",
        "https://ex%61mple.com/",
        "https://[::1",
        "https://localhost/",
        "https://a.localhost/",
        "https://localhost./",
        "https://printer.local/",
        "https://metadata.google.internal/",
        # Numbers that the system's resolver takes for 127.0.0.1.
        "https://2130706433/",
        "https://127.1/",
        "https://0x7f000001/",
        "https://0x7f.1/",
        "https://0177.0.0.1/",
        "https://127.0.0.1./",
        "https://\uff11\uff12\uff17.0.0.1/",
        "https://" + "a" * 2_048 + ".com/",
    ],
)
def test_urls_that_are_refused(url: str) -> None:
    assert isinstance(check_url(url, loopback=False), UrlRefused), url


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://example.com", Target("https", "example.com", 443, "/")),
        ("HTTPS://Example.COM:8443/a?b=c", Target("https", "example.com", 8443, "/a?b=c")),
        ("https://93.184.216.34/", Target("https", "93.184.216.34", 443, "/")),
        ("https://[2606:4700::1111]/x", Target("https", "2606:4700::1111", 443, "/x")),
    ],
)
def test_urls_that_are_taken(url: str, target: Target) -> None:
    assert check_url(url, loopback=False) == target


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8080/", "http://localhost/", "http://[::1]:1/", "https://localhost/"]
)
def test_this_machine_is_asked_only_if_a_setting_says_so(url: str) -> None:
    assert isinstance(check_url(url, loopback=True), Target)
    assert isinstance(check_url(url, loopback=False), UrlRefused)


@pytest.mark.parametrize("url", ["http://10.0.0.1/", "http://example.com/", "http://0.0.0.0/"])
def test_the_setting_allows_this_machine_alone(url: str) -> None:
    assert isinstance(check_url(url, loopback=True), UrlRefused)


def test_the_name_that_a_receiver_is_addressed_by() -> None:
    assert Target("https", "example.com", 443, "/").authority == "example.com"
    assert Target("https", "example.com", 80, "/").authority == "example.com:80"
    assert Target("http", "::1", 8080, "/").authority == "[::1]:8080"
