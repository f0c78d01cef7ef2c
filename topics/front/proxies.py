"""Trusted proxies: whose X-Forwarded-For is believed (TOPICS_TRUSTED_PROXIES).

    X-Forwarded-For: 192.0.2.1, 203.0.113.7, 10.0.0.2            peer: 10.0.0.1
                     |          |            '- a trusted proxy        '- a trusted proxy
                     |          '- the client
                     '- what the client has said itself

Each proxy appends the address that it sees. So the list is true from its right end on, up to the
first address that is no trusted proxy; anybody may have written what stands before it. A peer that
is no trusted proxy is believed nothing, nor is a Unix socket.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Final

from topics.formats.setting_values import Network

HOPS_MAX: Final = 16  # a longer row of trusted proxies is malformed
_ADDRESS: Final = re.compile(
    r"\[([0-9A-Fa-f:.]+)\](?::[0-9]{1,5})?|([0-9.]+)(?::[0-9]{1,5})?|([0-9A-Fa-f:.]+)", re.ASCII
)
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class TrustedProxies:
    """Tells the client of a request from the proxy that passed it on."""

    def __init__(self, networks: Sequence[Network]) -> None:
        self._networks = networks

    def client_of(self, peer: str, forwarded: bytes) -> str:
        """The client's address, without a port, of a connection with ``peer``; ``peer`` itself
        where it is not trusted, and where the list is malformed before the client's address.
        """
        found = _address(peer)
        if found is None or not self._trust(found):
            return peer
        hops = forwarded.decode("latin-1").rsplit(",", HOPS_MAX)
        for hop in reversed(hops):
            found = _address(hop.strip(" \t"))
            if found is None:
                return peer
            if not self._trust(found):
                break
        return str(found)  # of proxies alone: the farthest one

    def _trust(self, address: Address) -> bool:
        return any(address in network for network in self._networks)


def _address(text: str) -> Address | None:
    """An address, with or without a port and brackets; of IPv4 also where it is mapped."""
    found = _ADDRESS.fullmatch(text)
    if found is None:
        return None
    try:
        address = ipaddress.ip_address(found[found.lastindex or 0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
