"""Trusted proxies: determines the client's address from X-Forwarded-For (TOPICS_TRUSTED_PROXIES).

    X-Forwarded-For: 192.0.2.1, 203.0.113.7, 10.0.0.2            peer: 10.0.0.1
                     |          |            '- a trusted proxy        '- a trusted proxy
                     |          '- the client
                     '- sent by the client itself

Each proxy appends the address of its peer. So the list is reliable from its right end up to the
first address that is not a trusted proxy. Any client may have written the addresses before it. If
the peer is not a trusted proxy, or is connected through a Unix socket, the header must be ignored.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Final

from topics.formats.setting_values import Network

PROXIES_MAX: Final = 16  # a longer chain of trusted proxies counts as malformed
_ADDRESS: Final = re.compile(
    r"\[([0-9A-Fa-f:.]+)\](?::[0-9]{1,5})?|([0-9.]+)(?::[0-9]{1,5})?|([0-9A-Fa-f:.]+)", re.ASCII
)
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class TrustedProxies:
    """Determines the client of a request that a trusted proxy has forwarded."""

    def __init__(self, networks: Sequence[Network]) -> None:
        self._networks = networks

    def client_of(self, peer: str, forwarded: bytes) -> str:
        """Return the client's address, excluding its port, for a request that ``peer`` sent.

        Return ``peer`` itself if it is not trusted, or if the list is malformed to the right of the
        client's address.
        """
        found = _address(peer)
        if found is None or not self._is_trusted(found):
            return peer
        hops = forwarded.decode("latin-1").rsplit(",", PROXIES_MAX)
        for hop in reversed(hops):
            found = _address(hop.strip(" \t"))
            if found is None:
                return peer
            if not self._is_trusted(found):
                break
        return str(found)  # if all addresses are trusted proxies: the leftmost one

    def _is_trusted(self, address: Address) -> bool:
        return any(address in network for network in self._networks)


def _address(text: str) -> Address | None:
    """Parse an address with an optional port and brackets.

    Convert a mapped IPv4 address to IPv4.
    """
    found = _ADDRESS.fullmatch(text)
    if found is None:
        return None
    try:
        address = ipaddress.ip_address(found[found.lastindex or 0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
