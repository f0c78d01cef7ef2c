"""Trusted proxies: which address is the client's."""

from __future__ import annotations

import pytest

from topics.formats.setting_values import Networks
from topics.front.proxies import HOPS_MAX, TrustedProxies

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
        ("10.0.0.3, ::ffff:10.0.0.2", "10.0.0.3"),  # proxies alone: the farthest
        (", ".join(["192.0.2.1"] + ["10.0.0.2"] * (HOPS_MAX - 1)), "192.0.2.1"),
    ],
)
def test_the_rightmost_address_that_is_not_trusted_is_the_clients(
    forwarded: str, client: str
) -> None:
    assert PROXIES.client_of(PEER, forwarded.encode()) == client


@pytest.mark.parametrize(
    "forwarded",
    [
        *("", "unknown", "_hidden", "proxy.example", "192.0.2.1,", "192.0.2.1, nonsense"),
        *("192.0.2.256", "010.0.0.1", "192.0.2.1:", "[192.0.2.1", "2001:db8::1]:80", "1:2:3"),
        *("192.0.2.1 10.0.0.2", "fe80::1%eth0", "١٩٢.0.2.1", "nonsense, 10.0.0.2"),
        ", ".join(["10.0.0.2"] * (HOPS_MAX + 2)),
    ],
)
def test_a_malformed_list_leaves_the_peer(forwarded: str) -> None:
    assert PROXIES.client_of(PEER, forwarded.encode()) == PEER


@pytest.mark.parametrize("peer", ["192.0.2.7:80", "[2001:db8::7]:80", "unix", ""])
def test_who_is_no_trusted_proxy_is_not_believed(peer: str) -> None:
    assert PROXIES.client_of(peer, b"192.0.2.1") == peer


@pytest.mark.parametrize("peer", ["127.0.0.1:80", "[fd00::1]:80", "[::ffff:10.0.0.1]:80"])
def test_proxies_are_known_by_both_versions_of_addresses(peer: str) -> None:
    assert PROXIES.client_of(peer, b"192.0.2.1") == "192.0.2.1"
