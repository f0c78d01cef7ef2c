"""Setting values: parses the text of environment variables.

Only the documented forms are accepted. For any other text, a ``ValueError`` describes the accepted
values.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
from typing import ClassVar, NamedTuple, TypeAlias

ENDLESS = 2**63 - 1
PORT_MAX = 65_535
_BOOLEANS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


def boolean(text: str) -> bool:
    """Parse true, 1, yes or on, or false, 0, no or off, in upper or lower case."""
    if text.lower() not in _BOOLEANS:
        raise ValueError("must be true or false (also 1, 0, yes, no, on, off)")
    return _BOOLEANS[text.lower()]


class Bound(NamedTuple):
    """The range of integers that a setting accepts, including both bounds."""

    low: int
    high: int = ENDLESS
    power_of_two: bool = False

    def __str__(self) -> str:
        kind = "a power of two" if self.power_of_two else "an integer"
        return f"must be {kind} " + (
            f"of at least {self.low}" if self.high == ENDLESS else f"from {self.low} to {self.high}"
        )

    def parse(self, text: str) -> int:
        """Parse decimal digits. ``1e6``, ``+5``, ``1_000`` and ``64MiB`` raise ``ValueError``."""
        if not re.fullmatch(r"[0-9]{1,19}", text, re.ASCII):
            raise ValueError(str(self))
        number = int(text)
        if not self.low <= number <= self.high or (self.power_of_two and number & (number - 1)):
            raise ValueError(str(self))
        return number


class HostNames:
    """A comma-separated list of host names. They are converted to lower case."""

    most = 64
    rule = (
        f"must be at most {most} host names without ports, comma-separated; .example means all"
        " names below it, * any name"
    )
    name = re.compile(r"\*|\.?[a-z0-9_-]+(\.[a-z0-9_-]+)*")

    def parse(self, text: str) -> tuple[str, ...]:
        """Parse the list. Raises ``ValueError`` if an item is not a name or an address."""
        names = tuple(self._normal(name.strip().lower()) for name in text.split(","))
        if len(names) > self.most:
            raise ValueError(self.rule)
        return names

    def _normal(self, name: str) -> str:
        if self.name.fullmatch(name):
            return name
        bare = name[1:-1] if name.startswith("[") and name.endswith("]") else name
        try:
            return f"[{ipaddress.IPv6Address(bare)}]"
        except ValueError:
            raise ValueError(self.rule) from None


class Origins:
    """A comma-separated list of origins in the form in which browsers send them, or only ``*``.

    Origins are converted to lower case, and default ports are removed.
    """

    most = 64
    rule = (
        f"must be * or at most {most} origins, comma-separated, each scheme://host or"
        " scheme://host:port without a path"
    )
    origin = re.compile(
        r"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[a-z0-9_-]+(?:\.[a-z0-9_-]+)*)(?::([0-9]{1,5}))?"
    )
    ports: ClassVar = {"http": "80", "https": "443"}  # the default ports, which browsers omit

    def parse(self, text: str) -> tuple[str, ...]:
        """Parse the list. Raises ``ValueError`` for an invalid origin or ``null``.

        ``*`` together with other origins is also an error.
        """
        if text == "*":
            return ("*",)
        origins = tuple(self._normal(origin.strip().lower()) for origin in text.split(","))
        if len(origins) > self.most:
            raise ValueError(self.rule)
        return origins

    def _normal(self, text: str) -> str:
        if text == "null":
            raise ValueError("must not contain null: any page can have that origin")
        if text == "*":
            raise ValueError("must be * alone, or a list of origins")
        found = self.origin.fullmatch(text)
        if found is None or int(found[3] or 0) > PORT_MAX:
            raise ValueError(self.rule)
        scheme, host, port = found.groups()
        if host.startswith("["):
            try:
                host = f"[{ipaddress.IPv6Address(host[1:-1])}]"
            except ValueError:
                raise ValueError(self.rule) from None
        shown = "" if port is None or self.ports.get(scheme) == str(int(port)) else f":{int(port)}"
        return f"{scheme}://{host}{shown}"


Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class Networks:
    """A comma-separated list of addresses and networks."""

    most = 64
    rule = (
        f"must be at most {most} IP addresses or networks, comma-separated, as in"
        " 127.0.0.1,10.1.0.0/16,fd00::/8"
    )

    def parse(self, text: str) -> tuple[Network, ...]:
        """Parse the list. Raises ``ValueError`` for an item that is not an address or a network.

        A network with bits set after its prefix length is also an error.
        """
        try:
            networks = tuple(ipaddress.ip_network(part.strip()) for part in text.split(","))
        except ValueError:
            raise ValueError(self.rule) from None
        if len(networks) > self.most:
            raise ValueError(self.rule)
        return networks


class Host:
    """A host name or an address to listen on. An IPv6 address may be in brackets, as in a URL."""

    def parse(self, text: str) -> str:
        """Return the host without brackets. Raises ``ValueError`` for an invalid host name."""
        host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(host)
            return host
        if not host or host != text or re.search(r"[\s/@?#\[\]]", host) or not _has_idna(host):
            raise ValueError("must be a host name or an IP address")
        if ":" in host:
            raise ValueError("must be a host name or an IP address; the port goes into TOPICS_PORT")
        return host


def _has_idna(host: str) -> bool:
    try:
        return bool(host.encode("idna"))
    except UnicodeError:  # A label is empty or too long, or contains a lone surrogate.
        return False
