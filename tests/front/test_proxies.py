"""Trusted proxies: the address of the client."""

from __future__ import annotations

import pytest

from topics.formats.setting_values import Networks
from topics.front.proxies import PROXIES_MAX, TrustedProxies

PROXIES = TrustedProxies(Networks().parse("127.0.0.1,10.0.0.0/8,fd00::/8"))
PEER = "10.0.0.1:5123"


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("192.0.2.1:4711", "192.0.2.1"),
        ("2001:DB8::1", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("[2001:db8::1]:4711", "2001:db8::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        (" \t192.0.2.1\t ", "192.0.2.1"),
        ("203.0.113.9, 192.0.2.1", "192.0.2.1"),  # the client sent the first address
        ("192.0.2.1,10.0.0.2,fd00::2", "192.0.2.1"),
        ("<script>, 192.0.2.1, 10.0.0.2", "192.0.2.1"),
        ("10.0.0.3, ::ffff:10.0.0.2", "10.0.0.3"),  # only proxies: the farthest one
        (", ".join(["192.0.2.1"] + ["10.0.0.2"] * (PROXIES_MAX - 1)), "192.0.2.1"),
    ],
)
def test_the_rightmost_untrusted_address_is_that_of_the_client(forwarded: str, client: str) -> None:
    assert PROXIES.client_of(PEER, forwarded.encode()) == client


@pytest.mark.parametrize(
    "forwarded",
    [
        *("", "unknown", "_hidden", "proxy.example", "192.0.2.1,", "192.0.2.1, nonsense"),
        *("192.0.2.256", "010.0.0.1", "192.0.2.1:", "[192.0.2.1", "2001:db8::1]:80", "1:2:3"),
        *("192.0.2.1 10.0.0.2", "fe80::1%eth0", "١٩٢.0.2.1", "nonsense, 10.0.0.2"),
        ", ".join(["10.0.0.2"] * (PROXIES_MAX + 2)),
    ],
)
def test_a_malformed_list_is_ignored(forwarded: str) -> None:
    assert PROXIES.client_of(PEER, forwarded.encode()) == PEER


@pytest.mark.parametrize("peer", ["192.0.2.7:80", "[2001:db8::7]:80", "unix", ""])
def test_the_list_of_an_untrusted_peer_is_ignored(peer: str) -> None:
    assert PROXIES.client_of(peer, b"192.0.2.1") == peer


@pytest.mark.parametrize("peer", ["127.0.0.1:80", "[fd00::1]:80", "[::ffff:10.0.0.1]:80"])
def test_trusted_proxies_are_recognized_by_ipv4_and_ipv6_addresses(peer: str) -> None:
    assert PROXIES.client_of(peer, b"192.0.2.1") == "192.0.2.1"
